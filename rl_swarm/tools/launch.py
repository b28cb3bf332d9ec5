"""Many nodes on one machine: each its own process, threads shared out, restarted when it crashes, stopped together.

Output of a node goes to a file, never through a pipe: a pipe that nobody drains stops a node, and one whose reader died kills it.
Nodes know the launcher's process id, and stop by themselves when it is gone. How long they may take is said in `stopping.py`.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from rl_swarm.config import DEFAULT_STORE, SETTINGS, Config, expanded, load
from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.identity import load_identity
from rl_swarm.node.local import experiment_folder, home_of, wait_until_free
from rl_swarm.processes.children import python
from rl_swarm.processes.stopping import LAUNCHER, LAUNCHER_SECONDS
from rl_swarm.store import open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.text import visible

MOST_RESTARTS = 3
FORGIVEN_SECONDS = 600.0  # a node that ran so long before it crashed has all its restarts again
FIRST_PAUSE_SECONDS = 1.0
POLL_SECONDS = 0.2
WORD_SECONDS = 10.0  # between two words on which nodes have not stopped yet
WRONG_SETTING = 2
LAST_BYTES = 4096  # of a console, which may be large, that are looked at for its last line


@dataclass
class NodeProcess:
    """One node, through all its lives."""

    node_id: str
    command: list[str]
    environment: dict[str, str]
    console: Path
    process: "subprocess.Popen[bytes] | None" = None
    restarts: int = 0
    started_at: float = 0.0
    restart_at: float = 0.0
    asked: bool = False  # to stop
    done: bool = False

    def start(self) -> None:
        environment = self.environment | {LAUNCHER: str(os.getpid())}
        self.started_at, self.asked = time.monotonic(), False
        with self.console.open("ab") as output:
            # A session of its own: Ctrl-C reaches the launcher alone, which passes it on once.
            self.process = subprocess.Popen(
                self.command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask_to_stop(self) -> None:
        """Once only: a second signal would end the node before it has saved."""
        if self.process is not None and self.running and not self.asked:
            self.asked = True
            self.process.send_signal(signal.SIGTERM)

    def last_line(self) -> str:
        try:
            with self.console.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return visible(lines[-1]) if lines else "it said nothing"


class NodeFailed(SwarmError):
    """A node crashed again and again, or was started with a wrong setting."""


@dataclass
class Launcher:
    """Runs a coordinator and workers until all are done; `tick` is called several times a second, for whoever shows progress.

    `folders` are those of the nodes on this machine, where an earlier launcher's nodes may still be stopping.
    """

    nodes: list[NodeProcess]
    say: Callable[[str], None] = print
    follow: bool = False
    folders: Sequence[Path] = ()
    stopping: bool = False
    at_once: bool = False  # a second signal came
    _shown: dict[str, int] = field(default_factory=dict)

    def run(self, tick: Callable[[], None] = lambda: None) -> str:
        """Return 'complete' or 'stopped'; raise NodeFailed, with all others stopped, if a node cannot be kept running."""
        wait_until_free(self.folders, self._tell)
        with self._signals():
            try:
                with suppress(KeyboardInterrupt):
                    self._tend(tick)
            finally:
                with suppress(KeyboardInterrupt):
                    self._stop_all()
                self._kill_rest()
                self._show_consoles()
        return "stopped" if self.stopping else "complete"

    def _tend(self, tick: Callable[[], None]) -> None:
        for node in self.nodes:
            node.start()
        while not self.stopping and not all(node.done for node in self.nodes):
            for node in self.nodes:
                self._look_after(node)
            self._show_consoles()
            tick()
            time.sleep(POLL_SECONDS)

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
        if time.monotonic() - node.started_at >= FORGIVEN_SECONDS:
            node.restarts = 0
        if code == WRONG_SETTING or node.restarts == MOST_RESTARTS:
            again = "" if code == WRONG_SETTING else f" after {node.restarts} restarts"
            raise NodeFailed(f"{node.node_id} ended with code {code}{again}: {node.last_line()} (see {node.console})")
        pause = FIRST_PAUSE_SECONDS * 2**node.restarts
        node.restarts += 1
        node.process, node.restart_at = None, time.monotonic() + pause
        self._tell(f"{node.node_id} ended with code {code}: {node.last_line()}; starting it again in {pause:.0f} s")

    def _stop_all(self) -> None:
        """Ask every node to stop, and wait as long as each may take to save and publish; say from time to time who is missing."""
        for node in self.nodes:
            node.ask_to_stop()
        began = last_word = time.monotonic()
        while (missing := [node for node in self.nodes if node.running]) and not self.at_once:
            now = time.monotonic()
            if now - began >= LAUNCHER_SECONDS:
                break
            if now - last_word >= WORD_SECONDS:
                last_word = now
                last_words = "; ".join(f"{node.node_id}, which said last: {node.last_line()}" for node in missing)
                self._tell(f"still waiting, {now - began:.0f} of at most {LAUNCHER_SECONDS:.0f} s, for {last_words}")
                self._tell("Ctrl-C ends them at once")
            self._show_consoles()
            time.sleep(POLL_SECONDS)
        for node in self.nodes:
            code = node.process.poll() if node.process and node.asked else None
            if code is not None and code > 0:
                self._tell(f"{node.node_id} ended with code {code} when it was to stop: {node.last_line()} (see {node.console})")

    def _kill_rest(self) -> None:
        """Kill the nodes that still run, because they hang or because somebody is in a hurry, and say what that costs."""
        killed = [node for node in self.nodes if node.running]
        for node in killed:
            assert node.process is not None
            node.process.kill()
            node.process.wait()
        if not killed:
            return
        saved = _listed([node for node in self.nodes if node.process and node.process.returncode == 0])
        why = "ended at once" if self.at_once else f"not stopped in {LAUNCHER_SECONDS:.0f} s"
        self._tell(
            f"{why}: {saved or 'no node'} had saved and stopped; killed {_listed(killed)}, whose last checkpoints and spools "
            "are kept; start again to go on"
        )

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # a terminal that was closed must not keep nodes from being stopped
            self.say(line)

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
            self._tell(f"[{node_id}] {visible(line)}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal asks all nodes to stop, a second one ends them at once; a closed terminal may send SIGHUP twice."""

        def ask(number: int, frame: FrameType | None) -> None:
            if not self.stopping:
                self.stopping = True
                for node in self.nodes:  # from here, since `tick` may hang in the store
                    node.ask_to_stop()
                self._tell("stopping: each node saves a checkpoint; start again to go on")
            elif not self.at_once and number != signal.SIGHUP:
                self.at_once = True
                raise KeyboardInterrupt

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listed(nodes: Sequence[NodeProcess]) -> str:
    return ", ".join(node.node_id for node in nodes)


def launch_environment(environment: Mapping[str, str], flags: Mapping[str, str | None]) -> dict[str, str]:
    """What every node is started with: flags become variables, and a place and a name are there also if nobody gave them."""
    given = {SETTINGS[field_name].variable: value for field_name, value in flags.items() if value is not None}
    combined = {"GDRIVE_PATH": DEFAULT_STORE, "EXPERIMENT_NAME": "swarm", **environment, **given}
    return combined | {"GDRIVE_PATH": absolute(combined["GDRIVE_PATH"])}


def insist_on_founder(environment: Mapping[str, str]) -> dict[str, str]:
    """Have every node insist on the experiment that this key starts or has started, also after a restart."""
    config = load(environment)
    if config.identity is None or config.founder is not None:
        return dict(environment)
    store = open_store(config.store_url)
    public = load_identity(config.identity, Path(store.url)).public
    found = experiments.read(store, Layout(config.experiment_name))
    return dict(environment) | ({"SWARM_FOUNDER": public} if found is None or found.key == public else {})


def absolute(store: str) -> str:
    return store if "://" in store else str(expanded(store, "GDRIVE_PATH").absolute())


def consoles_of(config: Config) -> Path:
    """Where the output of this machine's nodes goes, beside what else they keep for themselves."""
    return home_of(config) / "consoles" / config.experiment_name


def folders_of(config: Config, nodes: Sequence[NodeProcess]) -> list[Path]:
    """The nodes' own folders on this machine; none before the experiment has begun."""
    found = experiments.read(open_store(config.store_url), Layout(config.experiment_name), config.founder)
    return [experiment_folder(config, found) / node.node_id for node in nodes] if found else []


def plan(environment: Mapping[str, str], workers: int, consoles: Path, cores: int | None = None) -> list[NodeProcess]:
    """A coordinator and `workers` workers, with the cores shared out: more threads than cores make everyone slow."""
    try:
        consoles.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"RL_SWARM_HOME cannot be used, got {str(consoles)!r} ({error.strerror}): name a folder that can be written"
        ) from None
    threads = str(max(1, (cores or os.cpu_count() or 1) // workers))
    shared = {**environment, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    names = [("coordinator_0", "coordinator"), *((f"worker_{number}", "worker") for number in range(1, workers + 1))]
    command = python("from rl_swarm.cli import main; main()", "node")
    return [
        NodeProcess(node_id, command, shared | {"NODE_ID": node_id, "NODE_ROLE": role}, consoles / f"{node_id}.log")
        for node_id, role in names
    ]
