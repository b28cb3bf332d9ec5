"""Run nodes on the machines of a Ray cluster that exists. Starts no cluster.

Each node is an actor that keeps one process of ours running. Ray chooses the machine. When that machine is gone, Ray makes the
actor again on another one, and the node goes on from its last checkpoint in the store. A node that crashes is the launcher's
business, as on one machine.

The environment of a node may hold credentials. It is an argument of a call: Ray keeps it in memory, and neither logs nor shows it.
"""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any

from rl_swarm.config import ALIASES, SETTINGS, VARIABLES, load
from rl_swarm.errors import ConfigError, LibraryError
from rl_swarm.extras import install_command
from rl_swarm.node.local import home_of, make_private
from rl_swarm.processes import threads
from rl_swarm.store.opening import CREDENTIALS
from rl_swarm.text import counted, visible
from rl_swarm.tools.launch import NODE_COMMAND, Launcher, NodeProcess, named_nodes

AUTO = "auto"  # the cluster that this machine belongs to
POLL_SECONDS = 0.2
ANSWER_SECONDS = 10.0  # in which an actor that has a place in the cluster answers
LAST_LINES_SECONDS = 2.0
THREADS = 32  # of an actor: calls that Ray repeats wait beside the first
LOST = 1  # the code of a node whose actor cannot be made
OF_ONE_MACHINE = {SETTINGS["home"].variable, SETTINGS["web_token"].variable}
OTHERS = ("HF_TOKEN", "HF_ENDPOINT", "WANDB_", *threads.VARIABLES)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster by its address, as `ray.init` takes it, and the share of a machine that each worker needs."""

    address: str = AUTO
    cpus: float = 1.0
    gpus: float = 0.0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect this process; raise ConfigError if nobody answers at the address."""
        try:
            import ray
        except ModuleNotFoundError:
            raise LibraryError(f"--on ray needs the package ray, which is not installed: {install_command('ray')}") from None
        try:
            if self.address != AUTO:  # Ray itself tries for two minutes
                host, _, port = self.address.rpartition(":")
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
            ray.init(self.address, log_to_driver=False, logging_level="ERROR", namespace="rl-swarm")
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"--on ray finds no cluster at {self.address!r} ({str(error).splitlines()[0]}): start one with 'ray start --head', "
                "or name the address that it prints: --on ray:HOST:PORT"
            ) from None
        try:
            yield
        finally:
            ray.shutdown()

    def room(self) -> int:
        """How many workers fit on the machines that are there now."""
        import ray

        machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
        wanted = {name: each for name, each in (("CPU", self.cpus), ("GPU", self.gpus)) if each}
        return sum(int(min(machine.get(name, 0.0) / each + 1e-9 for name, each in wanted.items())) for machine in machines)

    def launcher(self, environment: Mapping[str, str], workers: int, follow: bool) -> Launcher:
        """Make a launcher of a coordinator and workers on the cluster."""
        shared = sent_to_nodes(environment)
        nodes = [RayNode(node_id, shared | own, self) for node_id, own in named_nodes(workers).items()]
        return Launcher(nodes, follow=follow)

    def what_fits(self, workers: int) -> list[str]:
        """Say that some workers have to wait; raise ConfigError if the machines have no room for any."""
        room, each = self.room(), f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        if not room:
            raise ConfigError(
                f"no machine of the Ray cluster has {each} for a worker: lower --cpus-per-worker or --gpus-per-worker"
            )
        if room >= workers:
            return []
        return [f"the Ray cluster has room for {counted(room, 'worker')} with {each} each: the others start when machines join it"]


def sent_to_nodes(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that go to all machines: settings and credentials. Each machine has a home and all the rest of its own."""
    names = (VARIABLES | ALIASES) - OF_ONE_MACHINE
    return {name: value for name, value in environment.items() if name in names or name.startswith((*CREDENTIALS, *OTHERS))}


class Host:
    """The actor: runs a node's process on its machine. Ray calls its methods in threads, since `run` lasts as long as the node."""

    def __init__(self) -> None:
        self._process: NodeProcess | None = None
        self._starting = Lock()
        self._asked = False

    def run(self, environment: Mapping[str, str]) -> int:
        """Run the node until it ends, and return its exit code. Ray calls again if it lost sight of this machine for a while."""
        with self._starting:
            if self._process is None or not self._process.running:
                self._process = _start({**os.environ, **environment})
            node = self._process
        while (code := node.code) is None:
            if self._asked:
                node.ask_to_stop()
            time.sleep(POLL_SECONDS)
        return code

    def stop(self) -> None:
        self._asked = True

    def last_line(self) -> str:
        return self._process.last_line() if self._process else "it has not started"

    def new_lines(self) -> list[str]:
        return self._process.new_lines() if self._process else []


def _start(environment: Mapping[str, str]) -> NodeProcess:
    config = load(environment)
    consoles = home_of(config) / "consoles" / config.experiment_name
    make_private(consoles)
    node = NodeProcess(config.node, NODE_COMMAND, environment, consoles / f"{config.node}.log")
    node.start()
    return node


class RayNode:
    """One node on the cluster, through all its restarts and moves."""

    def __init__(self, node_id: str, environment: Mapping[str, str], cluster: Cluster) -> None:
        import ray

        worker = environment["NODE_ROLE"] == "worker"
        self.node_id, self.environment = node_id, environment
        self.restarts = 0
        self.started_at = self.restart_at = 0.0
        self.asked = False
        self._ray: Any = ray
        self._host = (
            ray.remote(Host)
            .options(
                name=f"{environment['EXPERIMENT_NAME']}/{node_id}",
                num_cpus=cluster.cpus if worker else 0,
                num_gpus=cluster.gpus if worker else 0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=THREADS,
                scheduling_strategy="SPREAD",
            )
            .remote()
        )
        self._end: Any = None  # the result of a run, once there is one
        self._code: int | None = None
        self._lines: Any = None  # the answer with new lines, once there is one
        self._failure = ""

    @property
    def started(self) -> bool:
        return self._end is not None

    @property
    def running(self) -> bool:
        return self.started and self.code is None

    @property
    def code(self) -> int | None:
        if self._code is None and self.started and self._ray.wait([self._end], timeout=0)[0]:
            try:
                self._code = self._ray.get(self._end)
            except self._ray.exceptions.RayError as error:
                self._code = LOST
                self._failure = self._failure or visible(str(error).strip().splitlines()[-1])
        return self._code

    @property
    def where_to_look(self) -> str:
        return f"'rl-swarm logs {self.node_id}'"

    def start(self) -> None:
        self.asked, self._code, self.started_at = False, None, time.monotonic()
        self._end = self._host.run.remote(dict(self.environment))

    def rest(self) -> None:
        self._end = self._code = None

    def ask_to_stop(self) -> None:
        """Return at once: a signal handler calls this."""
        if self.running and not self.asked:
            self.asked = True
            Thread(target=self._stop, name=f"stop {self.node_id}", daemon=True).start()

    def _stop(self) -> None:
        if not self._ray.wait([self._host.stop.remote()], timeout=ANSWER_SECONDS)[0]:
            self._failure = "it had no place in the cluster, and nothing to save"
            self.kill()

    def kill(self) -> None:
        self._ray.kill(self._host)

    def last_line(self) -> str:
        found = self._answer(self._host.last_line.remote(), ANSWER_SECONDS)
        return self._failure or found or "it has no place in the cluster"

    def new_lines(self) -> list[str]:
        """Return the lines that have arrived, and ask for more: a node without a place must not hold up the others."""
        self._lines = self._lines or self._host.new_lines.remote()
        found: list[str] | None = self._answer(self._lines, LAST_LINES_SECONDS if self.code is not None else 0)
        if found is not None:
            self._lines = None
        return found or []

    def _answer(self, reference: Any, seconds: float) -> Any:
        """What the actor answers; None if it does not answer in time."""
        try:
            return self._ray.get(reference, timeout=seconds)
        except self._ray.exceptions.RayError:
            return None
