import subprocess
from pathlib import Path

import pytest

from rl_swarm.processes.children import python


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may have put modules there, under names that a node imports."""
    for name in ("json", "click", "rl_swarm"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    program = "import json, click, rl_swarm.config; print(sys.argv[1:])"
    done = subprocess.run(python(program, "a", "b"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['a', 'b']\n", "")


def test_every_process_is_started_that_way() -> None:
    package = Path(__file__).parents[2] / "rl_swarm"
    starting = [path.name for path in package.rglob("*.py") if "sys.executable, " in path.read_text()]
    assert starting == ["children.py"]
