"""A real terminal of any size, by tmux: start a command in it, press keys, and look at the screen."""

import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


class Terminal:
    """One command in a terminal, which stays open after the command has ended. A context manager."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, width: int, height: int) -> None:
        self.command, self.environment, self.folder, self.size = command, environment, folder, (width, height)
        self._socket = Path(tempfile.mkdtemp(dir=folder), "socket")  # a server that was told to end may take a while

    def __enter__(self) -> "Terminal":
        variables = [f"{name}={value}" for name, value in {**self.environment, "TERM": "xterm-256color"}.items()]
        line = f"{shlex.join(['env', '-i', *variables, *self.command])}; echo [ended with $?]; sleep 1000"
        width, height = map(str, self.size)
        self._tmux("-f", "/dev/null", "new-session", "-d", "-s", "it", "-x", width, "-y", height, "-c", str(self.folder), line)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(["tmux", "-S", str(self._socket), *arguments], check=True, capture_output=True, text=True).stdout

    def press(self, key: str) -> None:
        self._tmux("send-keys", "-t", "it", key)

    def paste(self, text: str) -> None:
        """Paste a text as terminals do, who tell a program where it begins and ends."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p", "-t", "it")

    def screen(self, colours: bool = False) -> str:
        """The screen as it is now, without trailing spaces and empty lines."""
        return self._tmux("capture-pane", "-p", "-t", "it", *(["-e"] if colours else [])).rstrip()

    def everything(self) -> str:
        """The screen and all lines that have scrolled out of it, with wrapped lines joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "it").rstrip()

    def wait_for(self, text: str, seconds: float) -> str:
        """Return the first screen with this text; fail with the last one."""
        return self.wait_until(lambda screen: text in screen, repr(text), seconds)

    def wait_until(self, true_of: Callable[[str], bool], what: str, seconds: float) -> str:
        """Return the first screen of which this is true; fail with the last one."""
        deadline = time.monotonic() + seconds
        while not true_of(screen := self.screen()):
            assert time.monotonic() < deadline, f"{what} was not there in {seconds} s:\n{screen}"
            assert "[ended with" not in screen, f"{what} was not there at the end:\n{self.everything()}"
            time.sleep(0.1)
        return screen

    def wait_for_end(self, seconds: float) -> str:
        """Return everything that was written, once the command has ended."""
        deadline = time.monotonic() + seconds
        while "[ended with" not in self.screen():
            assert time.monotonic() < deadline, f"not ended in {seconds} s:\n{self.screen()}"
            time.sleep(0.1)
        return self.everything()
