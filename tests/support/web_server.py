"""A dashboard in a process of its own, as people start it, on a free port of loopback."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]
    console: Path

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(
    store: Path, folder: Path, arguments: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Run `rl-swarm web` on a folder, and end it afterwards."""
    port, console = free_port(), folder / "web.log"
    command = [sys.executable, "-m", "rl_swarm.cli", "web", "--gdrive-path", str(store), "--port", str(port), *arguments]
    settings = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **(environment or {})}
    with console.open("wb") as output:
        process = subprocess.Popen(command, env=settings, cwd=folder, stdout=output, stderr=output)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/healthz", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, console.read_text()
                time.sleep(0.1)
        yield Served(url, process, console)
    finally:
        process.terminate()
        process.wait(20)
