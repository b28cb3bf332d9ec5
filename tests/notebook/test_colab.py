"""Where a notebook runs: a fake `google.colab` with the names and the habits of the real one, and a fake driver of a GPU."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rl_swarm import notebook
from rl_swarm.errors import ConfigError


class Colab:
    """Mounts a folder of this machine. `mounted` is False after a flush, as in Colab."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, secrets: dict[str, str]) -> None:
        self.mounted, self.flushed, self.offered = False, 0, list[str]()

        class SecretNotFoundError(Exception): ...

        class NotebookAccessError(Exception): ...

        def get(name: str) -> str:
            if name not in secrets:
                raise SecretNotFoundError
            if not secrets[name]:
                raise NotebookAccessError
            return secrets[name]

        def mount(point: str, force_remount: bool = False) -> None:
            Path(point, "MyDrive").mkdir(parents=True, exist_ok=True)
            self.mounted = True

        def flush_and_unmount() -> None:
            self.mounted, self.flushed = False, self.flushed + 1

        parts = {
            "google": {},
            "google.colab": {},
            "google.colab.drive": {"mount": mount, "flush_and_unmount": flush_and_unmount},
            "google.colab.userdata": {
                "get": get,
                "SecretNotFoundError": SecretNotFoundError,
                "NotebookAccessError": NotebookAccessError,
            },
            "google.colab.files": {"download": self.offered.append},
        }
        for name, fields in parts.items():
            module = ModuleType(name)
            module.__path__ = []
            module.__dict__.update(fields)
            monkeypatch.setitem(sys.modules, name, module)


def test_without_colab_a_local_folder_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = notebook.shared_folder("/content/drive/MyDrive/x", str(tmp_path / "data"))
    assert folder == str(tmp_path / "data") and Path(folder).is_dir() and not notebook.in_colab()
    notebook.flush("/content/drive/MyDrive/x")
    assert "nothing to flush" in capsys.readouterr().out


def test_in_colab_the_drive_is_mounted_and_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colab = Colab(monkeypatch, {})
    wanted = str(tmp_path / "drive" / "MyDrive" / "swarms" / "rl-swarm")
    assert notebook.in_colab() and notebook.shared_folder(wanted, "unused") == wanted
    assert colab.mounted and Path(wanted).is_dir() and not Path("unused").exists()
    notebook.flush(wanted)
    assert colab.flushed == 1 and colab.mounted, "it is mounted again, to look at what arrived"
    with pytest.raises(ConfigError, match="must be below MyDrive or Shareddrives, got '/content/elsewhere'"):
        notebook.shared_folder("/content/elsewhere", "unused")


@pytest.mark.parametrize(("secrets", "found"), [({"HF_TOKEN": "hf_x"}, True), ({}, False), ({"HF_TOKEN": ""}, False)])
def test_a_secret_becomes_a_variable_and_is_never_shown(
    secrets: dict[str, str], found: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    Colab(monkeypatch, secrets)
    assert notebook.use_secret("HF_TOKEN") == found
    assert os.environ["HF_TOKEN"] == ("hf_x" if found else "")
    assert "hf_x" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("driver", "kind"),
    [
        ("echo 'Tesla T4, 15360 MiB, 7.5'", "T4"),
        ("echo 'NVIDIA A100-SXM4-40GB, 40960 MiB, 8.0'", "A100"),
        ("exit 9", "CPU"),
        (None, "CPU"),
    ],
)
def test_the_hardware_decides_which_settings_are_used(
    driver: str | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if driver:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{driver}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert notebook.hardware() == kind
    assert ("nano" in capsys.readouterr().out) == (kind == "CPU")


def test_a_folder_is_packed_and_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colab = Colab(monkeypatch, {})
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"x")
    notebook.download(str(tmp_path / "model"))
    assert colab.offered == [str(tmp_path / "model.zip")] and Path(colab.offered[0]).stat().st_size > 0
