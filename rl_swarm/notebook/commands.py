"""Run our commands from a cell: with their output as it comes, or with the live view of the run.

A command is a process of its own, so that a kernel that is interrupted, or killed, takes no work with it: the command is asked to
stop, and saves. Run the cell again to go on.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_swarm.config import SETTINGS
from rl_swarm.errors import SwarmError
from rl_swarm.notebook.looking import live_view
from rl_swarm.processes.children import Child, ConsoleFile, python
from rl_swarm.processes.stopping import LAUNCHER

POLL_SECONDS = 0.3
LAST_LINES = 12  # of a command that failed
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS")  # which a kernel sets: commands would draw as on a terminal
COLUMNS = "100"
CARD = "RL Swarm"  # begins the card of a run


class CommandFailed(SwarmError):
    """A command ended with an exit code other than 0."""


def configure(*settings: Mapping[str, object]) -> None:
    """Set variables for all commands of this notebook, the later ones before the earlier, and show them."""
    merged = {name: str(value) for each in settings for name, value in each.items()}
    os.environ.update(merged)
    meanings = {setting.variable: setting.meaning for setting in SETTINGS.values()}
    names, values = (max(map(len, words), default=0) for words in (merged, merged.values()))
    for name, value in merged.items():
        print(f"{name:{names}} = {value:{values}}  {meanings.get(name, '')}".rstrip())


def run_with_live_output(command: Sequence[str], cwd: str | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a command, show its output line by line and return its exit code. Interrupting the cell asks the command to stop."""
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**_environment(), **(env or {}), LAUNCHER: str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # an interrupt reaches the command only once, from here
    )
    assert process.stdout is not None
    with process.stdout:
        while True:
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                return process.wait()
            except KeyboardInterrupt:
                print("stopping: the node saves a checkpoint", file=sys.stderr, flush=True)
                process.terminate()


def run(*arguments: str) -> None:
    """Run `rl-swarm ARGUMENTS` with its output. Raises CommandFailed if it fails."""
    code = run_with_live_output(_command(arguments))
    if code:
        raise CommandFailed(f"rl-swarm {arguments[0]} ended with code {code}; its last lines say why")


def run_shown(*arguments: str) -> None:
    """Run `rl-swarm ARGUMENTS`, which trains, and show the run live in this cell; then print the command's last words.

    Interrupting the cell asks the command to stop, and waits until it has saved. Raises CommandFailed if it fails, and
    ConfigError for a wrong setting.
    """
    view = live_view()
    with tempfile.TemporaryDirectory() as folder:
        child = Child(_command(arguments), _environment(), Path(folder, "console"))
        console = ConsoleFile(child.console)
        child.start()
        with view:
            while child.running:
                try:
                    view.tick()
                    time.sleep(POLL_SECONDS)
                except KeyboardInterrupt:
                    print("stopping: each node saves a checkpoint", file=sys.stderr, flush=True)
                    child.ask_to_stop()
            view.show()
        said = console.lines()
    if child.code:
        last = "\n".join(said[-LAST_LINES:])
        raise CommandFailed(f"rl-swarm {arguments[0]} ended with code {child.code}:\n{last}")
    print("\n".join(_closing(said)))


def _closing(said: Sequence[str]) -> Sequence[str]:
    """Return the outcome and the card of a swarm, without its progress and the steps of the report; of others the last lines."""
    outcomes = [place for place, line in enumerate(said) if line.startswith("swarm ")]
    if not outcomes:
        return said[-LAST_LINES:]
    outcome, *rest = said[outcomes[-1] :]
    cards = [place for place, line in enumerate(rest) if line.startswith(f"{CARD} ")]
    return [outcome, "", *rest[cards[0] :]] if cards else [outcome, *rest]


def _environment() -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in COLOURS}
    return {**plain, "PYTHONUNBUFFERED": "1", "COLUMNS": COLUMNS}


def _command(arguments: Sequence[str]) -> list[str]:
    return python("from rl_swarm.cli import main; main()", *arguments)
