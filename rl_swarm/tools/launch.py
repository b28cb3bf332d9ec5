"""Run many nodes: start them, restart those that crash, stop them together. On this machine each is a process.

`on_ray.py` has nodes on a cluster. `processes/stopping.py` says how long they may take to stop.
"""

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from rl_swarm.config import DEFAULT_STORE, SETTINGS, Config, load
from rl_swarm.errors import SwarmError
from rl_swarm.node.assembly import load_config
from rl_swarm.node.local import Holder, experiment_folder, home_of, make_private, wait_until_free
from rl_swarm.node.vetting import vet
from rl_swarm.processes import threads
from rl_swarm.processes.children import Child, ConsoleFile, python
from rl_swarm.processes.stopping import LAUNCHER_SECONDS, launcher_of, on_signals, watching_launcher
from rl_swarm.runs.following import Following, Moment
from rl_swarm.runs.record import unstamped
from rl_swarm.show.live import LiveView
from rl_swarm.store import folder_of, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import TASK_PRESETS, canonical, parse_tasks, tasks_version
from rl_swarm.text import counted, visible

MOST_RESTARTS = 3
FORGIVEN_SECONDS = 600.0  # a node that ran this long before it crashed has all its restarts again
FIRST_PAUSE_SECONDS = 1.0
POLL_SECONDS = 0.2
WORD_SECONDS = 10.0  # between two lines about nodes that have not stopped yet
WRONG_SETTING = 2
COORDINATOR = "coordinator_0"
USUAL_OWN = 4  # I of a swarm on this machine
MOST_READ = 28  # J at most: seven peers who write four each
LONGEST_TASKS = 60  # characters of TASKS in a line
NODE_COMMAND = python("from rl_swarm.cli import main; main()", "node")


class LaunchedNode(Protocol):
    """One node, through all its restarts, wherever it runs. `started_at` and `restart_at` are on this machine's monotonic clock."""

    node_id: str
    environment: Mapping[str, str]
    restarts: int
    started_at: float
    restart_at: float
    asked: bool  # to stop

    @property
    def started(self) -> bool: ...
    @property
    def running(self) -> bool: ...
    @property
    def code(self) -> int | None: ...
    @property
    def where_to_look(self) -> str: ...
    def start(self) -> None: ...
    def rest(self) -> None: ...
    def ask_to_stop(self) -> None: ...
    def kill(self) -> None: ...
    def last_line(self) -> str: ...
    def new_lines(self) -> list[str]: ...


class NodeProcess(Child):
    """A node in a process of this machine."""

    def __init__(self, node_id: str, command: Sequence[str], environment: Mapping[str, str], console: Path) -> None:
        super().__init__(command, environment, console)
        self.node_id = node_id
        self.restarts = 0
        self.started_at = self.restart_at = 0.0
        self._output = ConsoleFile(console)
        self._output.lines()  # of earlier runs

    def start(self) -> None:
        self.started_at = time.monotonic()
        super().start()

    @property
    def started(self) -> bool:
        return self.process is not None

    @property
    def where_to_look(self) -> str:
        return str(self.console)

    def rest(self) -> None:
        """Forget the process that has ended, until the next start."""
        self.process = None

    def new_lines(self) -> list[str]:
        """Return the lines that were written to the console since the last call, without their times."""
        return [unstamped(line)[1] for line in self._output.lines()]

    def last_line(self) -> str:
        return unstamped(super().last_line())[1]


class NodeFailed(SwarmError):
    """A node crashed too often, or was started with a wrong setting."""


@dataclass
class Launcher:
    """Run a coordinator and workers until all are done."""

    nodes: Sequence[LaunchedNode]
    say: Callable[[str], None] = print
    follow: bool = False
    stopping: bool = False
    at_once: bool = False  # a second signal came

    def run(self, tick: Callable[[], None] = lambda: None) -> str:
        """Return 'complete' or 'stopped'; raise NodeFailed, with all others stopped, if a node cannot be kept running.

        `tick` is called several times a second, to show progress.
        """
        # A notebook that runs this and is killed cannot pass a signal on.
        orphaned = watching_launcher(launcher_of(os.environ), lambda: os.kill(os.getpid(), signal.SIGTERM))
        with on_signals(self._asked, closed_terminal=True), orphaned:
            try:
                with suppress(KeyboardInterrupt):
                    self._tend(tick)
            finally:
                with suppress(KeyboardInterrupt):
                    self._stop_all(tick)
                self._kill_rest()
                self._show_consoles()
        return "stopped" if self.stopping else "complete"

    def _tend(self, tick: Callable[[], None]) -> None:
        for node in self.nodes:
            node.start()
        while not self.stopping and not all(node.code == 0 for node in self.nodes):
            for node in self.nodes:
                self._look_after(node)
            self._show_consoles()
            tick()
            time.sleep(POLL_SECONDS)

    def _look_after(self, node: LaunchedNode) -> None:
        if not node.started:
            if time.monotonic() >= node.restart_at:
                node.start()
            return
        code = node.code
        if not code:
            return
        if time.monotonic() - node.started_at >= FORGIVEN_SECONDS:
            node.restarts = 0
        if code == WRONG_SETTING or node.restarts == MOST_RESTARTS:
            again = "" if code == WRONG_SETTING else f" after {counted(node.restarts, 'restart')}"
            raise NodeFailed(f"{node.node_id} ended with code {code}{again}: {node.last_line()} (see {node.where_to_look})")
        pause = FIRST_PAUSE_SECONDS * 2**node.restarts
        node.restarts += 1
        node.restart_at = time.monotonic() + pause
        node.rest()
        self._tell(f"{node.node_id} ended with code {code}: {node.last_line()}; starting it again in {pause:.0f} s")

    def _stop_all(self, tick: Callable[[], None]) -> None:
        """Ask every node to stop, and wait as long as each may take to save and publish. Name those that are missing."""
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
            tick()
            time.sleep(POLL_SECONDS)
        for node in self.nodes:
            if node.asked and node.code is not None and node.code > 0:
                self._tell(
                    f"{node.node_id} ended with code {node.code} while stopping: {node.last_line()} (see {node.where_to_look})"
                )

    def _kill_rest(self) -> None:
        """Kill the nodes that still run, because they hang or after a second signal, and say which had saved."""
        killed = [node for node in self.nodes if node.running]
        for node in killed:
            node.kill()
        if not killed:
            return
        saved = ", ".join(node.node_id for node in self.nodes if node.code == 0)
        why = "ended at once" if self.at_once else f"not stopped in {LAUNCHER_SECONDS:.0f} s"
        self._tell(
            f"{why}: {saved or 'no node'} had saved and stopped; killed {', '.join(node.node_id for node in killed)}. "
            "The next start goes on from the last checkpoints, and publishes what is not published yet"
        )

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # a terminal that was closed must not keep nodes from being stopped
            self.say(line)

    def _show_consoles(self) -> None:
        for node in self.nodes if self.follow else ():
            for line in node.new_lines():
                self._tell(f"[{node.node_id}] {visible(line)}")

    def _asked(self, number: int) -> None:
        """Ask all nodes to stop at the first signal, end them at once at the second. A closed terminal may send SIGHUP twice."""
        if not self.stopping:
            self.stopping = True
            for node in self.nodes:  # here, because `tick` may hang in the store
                node.ask_to_stop()
            self._tell("stopping: each node saves a checkpoint; Ctrl-C again ends them at once")
        elif not self.at_once and number != signal.SIGHUP:
            self.at_once = True
            raise KeyboardInterrupt


def run_shown(launcher: Launcher, config: Config, console: Console, again: str, report: Callable[[str], None]) -> str:
    """Run the nodes and show them live, or what they print if the launcher follows that; then report, and return the outcome.

    After a stop, say what each worker has saved, and with which command to go on `again`.
    """
    following = Following(open_store(config.store_url), Layout(config.experiment_name), config.founder)
    roles = {node.node_id: node.environment["NODE_ROLE"] for node in launcher.nodes}
    view = LiveView(following, console, starting=roles)
    launcher.say = view.say
    if launcher.follow:
        outcome = launcher.run()
        view.look()
    else:
        with view:
            try:
                outcome = launcher.run(view.tick)
            finally:
                view.show()
    view.say(f"swarm {outcome}")
    if not launcher.at_once:
        report(outcome)
    if outcome == "stopped":
        for line in ["", *what_was_saved(launcher.nodes, view.moment), "go on with:", f"  {again}"]:
            view.say(line)
    return outcome


def what_was_saved(nodes: Sequence[LaunchedNode], moment: Moment | None) -> Iterator[str]:
    """Say at which round each worker goes on, by its own last word."""
    last_words = {node.node_id: node for node in moment.nodes} if moment else {}
    saved: dict[str, list[str]] = {}
    for process in (process for process in nodes if process.environment.get("NODE_ROLE") == "worker"):
        node = last_words.get(process.node_id)
        if process.code != 0:
            what = "ended early, the last checkpoint counts"
        elif node is None or node.doing != "stopped":
            what = "complete" if node and node.doing == "complete" else "saved"
        else:
            what = "had not begun a round" if node.round is None else f"saved at round {node.round}"
        saved.setdefault(what, []).append(process.node_id)
    for what, names in saved.items():
        yield f"{', '.join(names)}: {what}"


def launch_environment(environment: Mapping[str, str], flags: Mapping[str, str | None]) -> dict[str, str]:
    """Make the environment that every node starts with: flags become variables, and store and experiment have defaults."""
    given = {SETTINGS[field_name].variable: value for field_name, value in flags.items() if value is not None}
    combined = {"GDRIVE_PATH": DEFAULT_STORE, "EXPERIMENT_NAME": "swarm", **environment, **given}
    folder = folder_of(combined["GDRIVE_PATH"])
    return combined | ({"GDRIVE_PATH": str(folder.absolute())} if folder else {})


def with_usual_split(environment: Mapping[str, str], workers: int) -> tuple[dict[str, str], list[str]]:
    """Let the workers of a new experiment read all that the others write, if nobody has set I or J; also return a line about it.

    That is what taught nano best. A worker alone has nobody to read, and a test run is not for learning.
    """
    config = load(environment)
    chosen = config.explicit("own_count") or config.explicit("external_count") or config.test_mode
    folder = folder_of(config.store_url)
    new = folder is not None and not (folder.is_dir() and _published(config))
    if workers < 2 or chosen or not new:
        return dict(environment), []
    external = min(MOST_READ, USUAL_OWN * (workers - 1))
    usual = {SETTINGS["own_count"].variable: str(USUAL_OWN), SETTINGS["external_count"].variable: str(external)}
    line = f"each worker trains on {USUAL_OWN} rollouts of its own and {external} of its peers a round"
    return {**environment, **usual}, [f"{line}: {' '.join(map('='.join, usual.items()))}"]


def _published(config: Config) -> bool:
    return (
        experiments.read(open_store(config.store_url, writable=False), Layout(config.experiment_name), config.founder) is not None
    )


def what_starts(environment: Mapping[str, str], workers: int, named: bool) -> Iterator[str]:
    """Say what begins, or goes on, before it takes hours; to somebody who has `named` no experiment, how to choose."""
    config = load(environment)
    store = open_store(config.store_url, writable=False)
    published = experiments.existing(store, Layout(config.experiment_name), config.founder)
    config = load(environment, {}, published.settings)
    yield (
        f"{counted(workers, 'worker')} on {config.store_url}, experiment {config.experiment_name}: "
        f"{counted(config.max_rounds, 'round')} with {config.model}, tasks {_shortened(config.tasks)}; Ctrl-C stops them"
    )
    if not named:
        yield "choose with --experiment NAME, --model-name, --tasks and --max-rounds; 'rl-swarm swarm --help' says more"


def _shortened(tasks: str) -> str:
    names = {preset: canonical(parse_tasks(preset)) for preset in TASK_PRESETS}
    known = next((preset for preset, text in names.items() if text == tasks), tasks)
    return known if len(known) <= LONGEST_TASKS else f"{known[:LONGEST_TASKS]}…"


def found(environment: Mapping[str, str], *, correct: bool = False, say: Callable[[str], None] = print) -> dict[str, str]:
    """Publish the experiment, or correct it, before any node starts: nodes would race each other. Return the nodes' environment.

    Every node insists, also after a restart, on an experiment that this key has signed.
    """
    flags = {"role": "coordinator", "node_id": COORDINATOR}
    config, _, experiment, identity = load_config(environment, flags, tasks_version(), vet=vet, correct=correct, say=say)
    ours = config.founder is None and identity is not None and experiment.key == identity.public
    return {**environment, **({"SWARM_FOUNDER": identity.public} if identity and ours else {})}


def address_of(config: Config) -> str:
    """The address with which others join an experiment that is published."""
    store = open_store(config.store_url)
    return experiments.address(store, experiments.existing(store, Layout(config.experiment_name), config.founder))


def make_launcher(
    environment: Mapping[str, str], workers: int, *, follow: bool = False, say: Callable[[str], None] = print
) -> Launcher:
    """Make a launcher of nodes whose output goes to RL_SWARM_HOME.

    Wait for nodes of an earlier launcher that are still stopping, and `say` so; raise ConfigError if they keep running.
    """
    config = load(environment)
    found = experiments.read(open_store(config.store_url), Layout(config.experiment_name), config.founder)
    folders = [experiment_folder(config, found) / node_id for node_id in named_nodes(workers)] if found else []
    wait_until_free(folders, say, lambda holder: _already_running(config, holder))
    return Launcher(plan(environment, workers, home_of(config) / "consoles" / config.experiment_name), follow=follow)


def _already_running(config: Config, holder: Holder) -> str:
    here = config.store_url == str(Path(DEFAULT_STORE).absolute())  # `status` looks there by itself
    place = "" if here else f" --gdrive-path {shlex.quote(config.store_url)}"
    return (
        f"the experiment {config.experiment_name!r} is already running on this machine ({holder.node_id} is {holder.shown}): "
        f"watch it with: rl-swarm status{place} --experiment {config.experiment_name} --watch"
    )


def plan(environment: Mapping[str, str], workers: int, consoles: Path, cores: int | None = None) -> list[NodeProcess]:
    """Plan a coordinator and `workers` workers, and share out the cores."""
    make_private(consoles)
    shared = {**environment, **threads.shared_by(workers, environment, cores)}
    return [
        NodeProcess(node_id, NODE_COMMAND, shared | own, consoles / f"{node_id}.log")
        for node_id, own in named_nodes(workers).items()
    ]


def named_nodes(workers: int) -> dict[str, dict[str, str]]:
    """The names of a coordinator and its workers, and the variables that only each of them has."""
    roles = {COORDINATOR: "coordinator"} | {f"worker_{number}": "worker" for number in range(1, workers + 1)}
    return {node_id: {"NODE_ID": node_id, "NODE_ROLE": role, "PYTHONUNBUFFERED": "1"} for node_id, role in roles.items()}
