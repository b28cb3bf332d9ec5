"""Debian's chromium without any library: its DevTools protocol through a pair of pipes."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
PATIENCE_SECONDS = 40.0


class Tab:
    """One page; `evaluate` runs a script in it."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._kept, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._kept:
                self._kept += os.read(self._answers, 1 << 16)
            line, _, self._kept = self._kept.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                return answer["result"]

    def evaluate(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_until(self, script: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < deadline, self.evaluate("document.body.innerText")
            time.sleep(0.05)


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """Start a browser with an empty page, and end it afterwards."""
    (theirs_in, commands), (answers, theirs_out) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"]
    launch = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'  # the browser reads from 3 and writes to 4
    process = subprocess.Popen(
        ["bash", "-c", launch, "chromium", str(CHROMIUM), *options],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (theirs_in, theirs_out):
        os.close(end)
    try:
        yield Tab(commands, answers)
    finally:
        process.terminate()
        process.wait(20)
        os.close(commands)
        os.close(answers)
