import os
import subprocess
import time
from pathlib import Path

import pytest

from rl_swarm.processes.children import Child, python


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


def test_a_child_is_asked_once_and_says_how_it_ended(tmp_path: Path) -> None:
    asked = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); print('here', flush=True)"
    child = Child(
        python(f"{asked}; time.sleep(0.3); time.sleep(0.3); print('last words'); sys.exit(3)"), os.environ, tmp_path / "console"
    )
    assert child.last_line() == "it said nothing" and child.code is None and not child.running
    child.start()
    while child.last_line() != "here":
        time.sleep(0.02)
    child.ask_to_stop()
    child.ask_to_stop()
    while child.running:
        time.sleep(0.02)
    assert child.code == 3 and child.console.read_text() == "here\nasked\nlast words\n" and child.last_line() == "last words"


def test_a_child_stops_when_the_process_that_started_it_was_killed(tmp_path: Path) -> None:
    watching = "from rl_swarm.processes.stopping import launcher_of, watching_launcher"
    orphan = (
        f"import os, time; {watching}\n"
        "with watching_launcher(launcher_of(os.environ), lambda: os._exit(5)): print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = (
        "import os, time; from pathlib import Path; from rl_swarm.processes.children import Child, python\n"
        f"Child(python({orphan!r}), os.environ, Path({str(tmp_path / 'console')!r})).start(); time.sleep(60)"
    )
    process = subprocess.Popen(python(parent))
    console = tmp_path / "console"
    while not console.exists() or not console.read_text().strip():
        time.sleep(0.05)
    pid = int(console.read_text())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < deadline, "it goes on without its parent"
        time.sleep(0.1)
