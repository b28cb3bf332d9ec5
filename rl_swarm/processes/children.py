"""Start our own Python programs in other processes, and look after them.

Output goes to a file, never through a pipe: a pipe that nobody drains blocks a child, and one whose reader died kills it. A child
knows the process id of its parent, and stops by itself when the parent is gone (see `stopping.py`).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_swarm.processes.stopping import LAUNCHER
from rl_swarm.text import visible

LAST_BYTES = 4096  # of a console, which may be large, that are searched for its last line
MOST_BYTES = 1 << 20  # of a console that are read at once

_ROOT = str(Path(__file__).parents[2])


def python(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program which can import this package.

    It imports nothing from the current folder, which Python puts first on its path: strangers may be able to write there.
    """
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]"
    return [sys.executable, "-c", f"{path}; {program}", *arguments]


class Child:
    """A program that may be started more than once, and its current process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], console: Path) -> None:
        self.command, self.environment, self.console = command, environment, console
        self.process: subprocess.Popen[bytes] | None = None
        self.asked = False  # to stop

    def start(self) -> None:
        self.asked = False
        with self.console.open("ab") as output:
            # A session of its own: Ctrl-C reaches only the parent, which passes it on once.
            self.process = subprocess.Popen(
                self.command,
                env={**self.environment, LAUNCHER: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs, and before it was started."""
        return self.process.poll() if self.process else None

    def ask_to_stop(self) -> None:
        """Send SIGTERM once: a second signal would end it before it has saved."""
        if self.process is not None and self.running and not self.asked:
            self.asked = True
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def last_line(self) -> str:
        try:
            with self.console.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return visible(lines[-1]) if lines else "it said nothing"


class ConsoleFile:
    """The output of a child, read from where the last look ended; of long output the end."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.most_bytes = path, most_bytes
        self.changed = 0.0  # when it was written to last
        self._offset = 0

    def lines(self) -> list[str]:
        """Return the whole lines since the last call."""
        try:
            with self.path.open("rb") as file:
                size, self.changed = os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_mtime
                start = max(self._offset if self._offset <= size else 0, size - self.most_bytes)
                file.seek(start)
                data = file.read(self.most_bytes)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = start + len(whole)
        return whole.decode(errors="replace").splitlines()
