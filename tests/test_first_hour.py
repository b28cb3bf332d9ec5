"""The first hour of a new user on real terminals: the README's commands as they stand, a kill, Ctrl-C, resuming (slow)."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_tmux]

SIZES = [(120, 40), (80, 24)]
README = (ROOT / "README.md").read_text()

Open = Callable[[str, str], Terminal]


@pytest.fixture(params=SIZES, ids=["120x40", "80x24"])
def user(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open a terminal with a name of its own and type a line in it. All start in the same folder, with an empty home."""
    width, height = request.param
    here = tmp_path / "here"
    here.mkdir()
    command = tmp_path / "bin" / "rl-swarm"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom rl_swarm.cli import main\nmain()\n"
    )
    command.chmod(0o755)
    environment = {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    with ExitStack() as terminals:

        def type_line(name: str, line: str) -> Terminal:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            shell = ["bash", "-c", f"trap : INT; cd {shlex.quote(str(here))} && {line}"]  # Ctrl-C ends the command, not the shell
            return terminals.enter_context(Terminal(shell, environment, folder, width, height))

        yield type_line


def block(beginning: str) -> str:
    """The block of commands of the README that begins so, in one line."""
    found = next(text for text in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) if text.startswith(beginning))
    return " && ".join(found.strip().splitlines())


def commands_in(text: str, verb: str) -> list[str]:
    """The commands of this kind that a screen offers, as they can be pasted."""
    return [line.strip() for line in text.splitlines() if re.match(rf"\s+\S*rl-swarm {verb}\b", line)]


def test_the_first_hour(user: Open) -> None:
    # Each node in a terminal of its own, as the README says.
    coordinator = user("coordinator", block("export GDRIVE_PATH=./rl-swarm-data EXPERIMENT_NAME=second") + " --max-rounds 300")
    coordinator.wait_for("no worker is there: start one", 60)
    join = block("rl-swarm join")
    first = user("first", f"{join} --node-id first")
    screen = first.wait_for("this is what you take part in", 30)
    first.wait_for("loading libraries", 30)
    first.wait_for("saved at round 10", 120)
    second = user("second", f"{join} --node-id second")
    second.wait_for("round ", 120)
    watching = user("watching", block("rl-swarm status"))
    screen = watching.wait_for("second", 60)
    assert re.search(r"^first +\S", screen, re.MULTILINE) and "external" in screen, screen

    # One is killed: the others go on, and the view says that it is silent.
    os.kill(pid_of(first), signal.SIGKILL)
    watching.wait_for("silent for", 120)
    reached = newest_round(second)
    second.wait_for(f"round {reached + 2}: reward", 60)

    # The other is stopped: it says what it saved, and how to go on; that line resumes it where it was.
    second.press("C-c")
    text = second.wait_for_end(60)
    assert "Traceback" not in text
    saved = re.findall(r"saved at round (\d+)", text)[-1]
    [again] = commands_in(text, "join")
    third = user("third", again)
    third.wait_for(f"resumed at round {saved}", 120)

    # The killed one comes back with the same command, too.
    fourth = user("fourth", f"{join} --node-id first")
    fourth.wait_for("resumed at round", 120)
    watching.press("C-c")
    assert "[ended with 0]" in watching.wait_for_end(20)

    # The end of the run offers commands that work as they stand.
    text = third.wait_for_end(600)
    assert "Traceback" not in text + fourth.wait_for_end(120) + coordinator.wait_for_end(120)
    for number, verb in enumerate(("report", "ask", "status")):
        [line] = commands_in(text, verb)[:1]
        said = user(f"after-{number}", line).wait_for_end(180)
        assert "[ended with 0]" in said and "Traceback" not in said, said
    logs = user("logs", "rl-swarm logs -n 5 second --gdrive-path ./rl-swarm-data --experiment second").wait_for_end(60)
    assert "second" in logs and "[ended with 0]" in logs, logs
    mistyped = user("mistyped", "rl-swarm report secnod --gdrive-path ./rl-swarm-data").wait_for_end(30)
    assert "second" in mistyped and "[ended with 2]" in mistyped, mistyped


def test_the_demo_ends_with_something_to_look_at(user: Open) -> None:
    demo = user("demo", "rl-swarm demo --max-rounds 4 --workers 2")
    demo.wait_for("loading libraries", 30)
    text = demo.wait_for_end(300)
    assert "[ended with 0]" in text and "Traceback" not in text
    assert "report.html" in text and "report.png" in text
    [line] = commands_in(text, "ask")[:1]
    said = user("asked", line).wait_for_end(120)
    assert "[ended with 0]" in said, said


def pid_of(terminal: Terminal) -> int:
    """The process of the node in a terminal, from its lock."""
    home = Path(terminal.environment["HOME"])
    [lock] = home.glob(f".rl-swarm/*/{terminal.folder.name}/lock")
    return int(lock.read_text().split()[0])


def newest_round(terminal: Terminal) -> int:
    return max(map(int, re.findall(r"round (\d+): reward", terminal.everything())))
