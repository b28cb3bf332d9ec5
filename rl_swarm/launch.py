"""Many nodes on one machine: each its own process, threads shared out, restarted when it crashes, stopped together.

Output of a node goes to a file, never through a pipe: a pipe that nobody drains stops a node, and one whose reader died kills it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from rl_swarm.config import DEFAULT_STORE, SETTINGS, Config
from rl_swarm.errors import SwarmError
from rl_swarm.text import visible

MOST_RESTARTS = 3
FIRST_PAUSE_SECONDS = 1.0
POLL_SECONDS = 0.2
STOP_SECONDS = 60.0
WRONG_SETTING = 2


@dataclass
class NodeProcess:
    """One node, through all its lives."""

    node_id: str
    command: list[str]
    environment: dict[str, str]
    console: Path
    process: "subprocess.Popen[bytes] | None" = None
    restarts: int = 0
    restart_at: float = 0.0
    done: bool = False

    def start(self) -> None:
        with self.console.open("ab") as output:
            # A session of its own: Ctrl-C reaches the launcher alone, which passes it on once.
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def last_line(self) -> str:
        lines = self.console.read_text(errors="replace").strip().splitlines() if self.console.exists() else []
        return visible(lines[-1]) if lines else "it said nothing"


class NodeFailed(SwarmError):
    """A node crashed again and again, or was started with a wrong setting."""


@dataclass
class Launcher:
    """Runs a coordinator and workers until all are done; `tick` is called several times a second, for whoever shows progress."""

    nodes: list[NodeProcess]
    say: Callable[[str], None] = print
    follow: bool = False
    stopping: bool = False
    _shown: dict[str, int] = field(default_factory=dict)

    def run(self, tick: Callable[[], None] = lambda: None) -> str:
        """Return 'complete' or 'stopped'; raise NodeFailed, with all others stopped, if a node cannot be kept running."""
        with self._signals():
            try:
                for node in self.nodes:
                    node.start()
                while not self.stopping and not all(node.done for node in self.nodes):
                    for node in self.nodes:
                        self._look_after(node)
                    self._show_consoles()
                    tick()
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop_all()
                self._show_consoles()
        return "stopped" if self.stopping else "complete"

    def _look_after(self, node: NodeProcess) -> None:
        if node.done:
            return
        if node.process is None:
            if time.monotonic() >= node.restart_at:
                node.start()
            return
        code = node.process.poll()
        if code is None:
            return
        if code == 0:
            node.done = True
            return
        if code == WRONG_SETTING or node.restarts == MOST_RESTARTS:
            again = "" if code == WRONG_SETTING else f" after {node.restarts} restarts"
            raise NodeFailed(f"{node.node_id} ended with code {code}{again}: {node.last_line()} (see {node.console})")
        pause = FIRST_PAUSE_SECONDS * 2**node.restarts
        node.restarts += 1
        node.process, node.restart_at = None, time.monotonic() + pause
        self.say(f"{node.node_id} ended with code {code}: {node.last_line()}; starting it again in {pause:.0f} s")

    def _stop_all(self) -> None:
        """Ask every node to stop; each saves a checkpoint. One that does not obey in time is killed."""
        running = [node for node in self.nodes if node.process and node.process.poll() is None]
        for node in running:
            assert node.process is not None
            node.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for node in running:
            assert node.process is not None
            try:
                node.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.say(f"{node.node_id} did not stop in {STOP_SECONDS:.0f} s and is killed; its last checkpoint counts")
                node.process.kill()
                node.process.wait()

    def _show_consoles(self) -> None:
        if not self.follow:
            return
        for node in self.nodes:
            if node.console.exists():
                with node.console.open("rb") as file:
                    self._show_new_lines(node.node_id, file)

    def _show_new_lines(self, node_id: str, file: IO[bytes]) -> None:
        file.seek(self._shown.get(node_id, 0))
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._shown[node_id] = self._shown.get(node_id, 0) + len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.say(f"[{node_id}] {visible(line)}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True
            self.say("stopping: each node saves a checkpoint; start again to go on")

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def launch_environment(environment: Mapping[str, str], flags: Mapping[str, str | None]) -> dict[str, str]:
    """What every node is started with: flags become variables, and a place and a name are there also if nobody gave them."""
    given = {SETTINGS[field_name].variable: value for field_name, value in flags.items() if value is not None}
    combined = {"GDRIVE_PATH": DEFAULT_STORE, "EXPERIMENT_NAME": "swarm", **environment, **given}
    return combined | {"GDRIVE_PATH": absolute(combined["GDRIVE_PATH"])}


def absolute(store: str) -> str:
    return store if "://" in store else str(Path(store).expanduser().absolute())


def consoles_of(config: Config) -> Path:
    """Where the output of this machine's nodes goes, beside what else they keep for themselves."""
    return Path(config.home).expanduser() / "consoles" / config.experiment_name


def plan(environment: Mapping[str, str], workers: int, consoles: Path, cores: int | None = None) -> list[NodeProcess]:
    """A coordinator and `workers` workers, with the cores shared out: more threads than cores make everyone slow."""
    consoles.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (cores or os.cpu_count() or 1) // workers))
    shared = {**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    names = [("coordinator_0", "coordinator"), *((f"worker_{number}", "worker") for number in range(1, workers + 1))]
    command = [sys.executable, "-m", "rl_swarm.cli", "node"]
    return [
        NodeProcess(node_id, command, shared | {"NODE_ID": node_id, "NODE_ROLE": role}, consoles / f"{node_id}.log")
        for node_id, role in names
    ]
