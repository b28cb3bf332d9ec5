"""Start Python programs of our own in other processes."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])


def python(program: str, *arguments: str) -> list[str]:
    """The command that runs a program, with this package within reach.

    It imports nothing from the current folder, which Python puts first on its path: strangers may be able to write there.
    """
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]"
    return [sys.executable, "-c", f"{path}; {program}", *arguments]
