"""Libraries that are missing, too old or too new: one line with the remedy, never a traceback."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.learning.engine.libraries import NEEDED, fits
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import tasks_version
from tests.support.processes import ROOT

GENRL = ROOT / ".venv-genrl" / "bin" / "python"


@pytest.mark.parametrize(
    ("requirement", "good", "bad"),
    [
        ("transformers>=5.0,<6", ["5.0.0", "5.22.2", "5.1.0.dev0"], ["4.51.3", "6.0.0", "unknown", ""]),
        ("torch>=2.6", ["2.6.0", "2.13.0+cpu", "3.0"], ["2.5.1+cu124", "1.13", ""]),
        ("reasoning-gym==0.1.25", ["0.1.25"], ["0.1.24", "0.1.250", "0.1"]),
    ],
)
def test_versions_are_compared_as_numbers(requirement: str, good: list[str], bad: list[str]) -> None:
    assert all(fits(requirement, version) for version in good)
    assert not any(fits(requirement, version) for version in bad)


def test_the_libraries_that_are_checked_are_those_that_are_installed_with_the_package() -> None:
    dependencies = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert dependencies and sorted(re.findall(r'"(.+)"', dependencies[1])) == sorted(NEEDED)


def run(tmp_path: Path, *arguments: str, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    """Run a command in an environment whose first libraries are in `tmp_path`/first."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tmp_path / 'first'}{os.pathsep}{ROOT}",
        "HOME": str(tmp_path),
        "GDRIVE_PATH": str(tmp_path / "store"),
        "EXPERIMENT_NAME": "e",
        "MODEL_NAME": "nano",
        "OMP_NUM_THREADS": "1",
    }
    command = [python, "-c", "from rl_swarm.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)


def publish(folder: Path) -> None:
    folder.mkdir()
    experiments.publish(FolderStore(folder), Layout("e"), load({"MODEL_NAME": "nano"}), tasks_version(), SystemClock())


def install(tmp_path: Path, name: str, version: str) -> None:
    folder = tmp_path / "first" / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("command", ["work", "ask 1+1", "swarm", "demo", "export model", "probe"])
def test_an_old_library_is_one_line_with_the_remedy(command: str, tmp_path: Path) -> None:
    publish(tmp_path / "store")
    install(tmp_path, "transformers", "4.51.3")
    install(tmp_path, "torch", "2.1.0")
    done = run(tmp_path, *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "rl-swarm: libraries do not fit (torch is 2.1.0, transformers is 4.51.3): run pip install 'torch>=2.6' "
        f"'transformers>=5.0,<6' with {sys.executable}, or use an environment of its own if something else needs other versions\n"
    )
    assert [path.name for path in (tmp_path / "store").rglob("*.json")] == ["experiment.json"], "nobody joins"


def test_a_missing_library_is_one_line_also_for_light_commands(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "first" / "msgspec.py").write_text("raise ModuleNotFoundError(\"No module named 'msgspec'\", name='msgspec')\n")
    for command in ("status", "coordinate", "doctor", "work"):
        done = run(tmp_path, command)
        says = "rl-swarm: msgspec cannot be imported (No module named 'msgspec'): install it again, or run 'make setup'\n"
        assert (done.returncode, done.stderr) == (1, says)


@pytest.mark.parametrize("command", ["memory nano", pytest.param("work", marks=pytest.mark.slow)])
def test_tokenizers_that_transformers_refuses_are_one_line(command: str, tmp_path: Path) -> None:
    install(tmp_path, "tokenizers", "0.10.0")
    done = run(tmp_path, *command.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.match(r"rl-swarm: .*tokenizers.* is required .*found tokenizers==0\.10\.0", done.stderr.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not GENRL.exists(), reason="needs the environment that 'make bench' makes for GenRL")
@pytest.mark.parametrize("command", ["work", "ask 1+1", "doctor", "swarm", "status"])
def test_the_environment_of_genrl_is_answered(command: str, tmp_path: Path) -> None:
    publish(tmp_path / "store")
    done = run(tmp_path, *command.split(), python=str(GENRL))
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "transformers is 4.51.3" in done.stderr and "msgspec is missing" in done.stderr
