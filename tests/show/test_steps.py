"""A command that takes long shows its steps, and that time passes."""

import io
import re
import time

from rich.console import Console

from rl_swarm.show.steps import steps


def shown(terminal: bool, seconds: float = 0.0) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
    with steps(console, "loading \x1b[2J[bold]libraries") as step:
        time.sleep(seconds)
        step("asking")
        time.sleep(seconds)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_elsewhere_each_step_is_a_line() -> None:
    assert shown(terminal=False) == "loading \\x1b[2J[bold]libraries\nasking\n"


def test_on_a_terminal_seconds_pass_and_nothing_is_left() -> None:
    text = shown(terminal=True, seconds=0.7)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "0:00:00 loading \\x1b[2J[bold]libraries" in plain and "0:00:01 asking" in plain
    assert text.endswith("\x1b[2K"), "the line is erased"
