"""Assemble a node from its settings, run its loop under signals, and close everything consistently.

Imports no torch: the parts that need it are assembled in `learner.py`.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_swarm import config as configuration
from rl_swarm.clock import SystemClock
from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, EndedAtOnce
from rl_swarm.identity import KEY_FILE, Identity, load_identity, require_library
from rl_swarm.node.coordinator import Coordinator
from rl_swarm.node.journal import Journal
from rl_swarm.node.local import LocalFolder, claim, home_of, insist_on_first_founder, make_private
from rl_swarm.node.trackers import Trackers, require_trackers
from rl_swarm.node.worker import Checkpoints, Learner, Push, Worker
from rl_swarm.processes.stopping import (
    DRAIN_SECONDS,
    MERGE_SECONDS,
    TRACKERS_SECONDS,
    Stop,
    Stopped,
    launcher_of,
    on_signals,
    watching_launcher,
)
from rl_swarm.store import Store, folder_of, open_store
from rl_swarm.store.aside import StillRunning, aside
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.alone import Alone
from rl_swarm.swarm.correction import check_correctable, differences, remove
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.membership import Membership, enter, registration
from rl_swarm.swarm.peers import register
from rl_swarm.swarm.protocol import Newsbox, Swarm
from rl_swarm.swarm.through_store import StoreSwarm
from rl_swarm.tasks import tasks_of
from rl_swarm.text import counted

Vet = Callable[[Config, Callable[[str], None]], None]


@dataclass(frozen=True)
class Node:
    """A node before its loop begins: a `member` of an experiment in a store, or alone."""

    config: Config
    clock: SystemClock
    stop: Stop
    experiment: Experiment
    local: LocalFolder
    journal: Journal
    news: Newsbox
    member: Membership | None = None
    secret: str = ""  # without a secret, the node's choices follow from its seed alone
    launcher: int | None = None  # process id of the launcher; the node stops when the launcher is gone

    @property
    def record(self) -> Store:
        """The node's own journals on its own disk."""
        return FolderStore(self.local.record, local=True)

    def run(self, loop: Callable[[], str]) -> str:
        """Run the loop; whatever happens, publish what is pending and leave readable journals.

        Raise EndedAtOnce after a second Ctrl-C.
        """
        with on_signals(self._asked), watching_launcher(self.launcher, self._orphaned):
            try:
                return self._run(loop)
            except KeyboardInterrupt:
                raise EndedAtOnce("ended at once, as asked") from None

    def _run(self, loop: Callable[[], str]) -> str:
        try:
            return loop()
        except Stopped:
            self.journal.say("stopped before the first round")
            self.journal.state("stopped", self.journal.doing[1])
            return "stopped"
        except (KeyboardInterrupt, EndedAtOnce):
            self.journal.state("stopped", self.journal.doing[1])
            raise
        except BaseException as failure:
            self.journal.error(failure)
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Publish what is pending, say in a last heartbeat how the node ended, and merge the journals.

        All that within the time limits that a launcher counts on.
        """
        self.local.mark_stopping()
        self._close_trackers()
        self.journal.tell(self.news.take())
        self.journal.flush()
        if (member := self.member) is None:
            return
        publisher = member.publisher
        if self.stop.requested and publisher.pending:
            self.journal.show(f"publishing {counted(publisher.pending, 'document')}, at most {DRAIN_SECONDS:.0f} s")
        publisher.close(DRAIN_SECONDS, persist=not self.stop.requested)
        self.journal.tell(self.news.take())
        if publisher.pending:
            self.journal.say(
                f"the store is away: {counted(publisher.pending, 'document')} left in {publisher.folder}; start the node "
                "again to publish the rest"
            )
        until = self.clock.monotonic() + MERGE_SECONDS
        try:
            aside(lambda: member.merge(until)).result(MERGE_SECONDS)
        except StillRunning:
            self.journal.show(f"the journals are not merged after {MERGE_SECONDS:.0f} s: their segments hold everything")

    def _close_trackers(self) -> None:
        if self.journal.trackers:
            try:
                aside(self.journal.trackers.close).result(TRACKERS_SECONDS)
            except StillRunning:
                self.journal.say(f"the trackers are not finished after {TRACKERS_SECONDS:.0f} s: the journals have every figure")

    def _ask_to_stop(self) -> None:
        self.stop.requested = True
        self.clock.wake()
        self.local.mark_stopping()

    def _orphaned(self) -> None:
        if not self.stop.requested:
            self.news.add("orphaned", f"the launcher (process {self.launcher}) is gone: stopping")
            self._ask_to_stop()

    def _asked(self, number: int) -> None:
        """Stop at the next step on the first SIGTERM or Ctrl-C; end at once on the second, or on the first during the start."""
        if self.stop.requested:
            raise KeyboardInterrupt
        self._ask_to_stop()
        self.stop.obey()
        with contextlib.suppress(RuntimeError):  # the signal came while a line was being printed
            self.journal.show("stopping after this step; a second Ctrl-C ends at once")


def load_config(
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
    tasks_version: str,
    *,
    vet: Vet = lambda config, say: None,
    correct: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Config, Store, Experiment, Identity | None]:
    """Read the settings of this node, on top of the experiment's own, and its key.

    The first node publishes the experiment, signed if SWARM_IDENTITY is set, after `vet` has accepted the settings. With `correct`,
    an experiment in which nobody has played is replaced by one that has this node's explicit settings, if they differ. In a signed
    experiment every node has a key. A node alone has the experiment on its own disk.
    """
    config = configuration.load(environment, flags)
    if config.role == "coordinator":
        configuration.require(config, "store", "experiment")
    if config.store is None:
        make_private(Path(config.store_url))
    store, shared = open_store(config.store_url), folder_of(config.store_url)
    if config.store is None:
        say(f"alone, without a store: everything stays in {store.url}; set GDRIVE_PATH to join others")
    identity = load_identity(config.identity, shared) if config.identity else None
    if config.store is not None and shared and home_of(config).resolve().is_relative_to(shared.resolve()):
        raise ConfigError(
            f"RL_SWARM_HOME lies in the shared folder, got {config.home!r}: spool, checkpoints and secrets of a node belong "
            "on a disk of its own; the store has a copy of what the node needs to resume elsewhere"
        )
    layout, removed = Layout(config.experiment_name), None
    found = experiments.read(store, layout, config.founder)
    if found is None:
        vet(config, say)
    elif correct:
        wanted = configuration.load(environment, flags, found.settings)
        if changes := differences(wanted, found, tasks_version):
            check_correctable(store, layout, found, identity.public if identity else None)
            vet(wanted, say)
            remove(store, layout, found)
            config, removed = wanted, found
            say(f"the experiment {found.experiment!r} is corrected, nodes that have the old one stop: {'; '.join(changes)}")
    experiment = experiments.publish(store, layout, config, tasks_version, store.clock, identity, removed)
    insist_on_first_founder(config, store.url, experiment, identity.public if identity else None)
    config = configuration.load(environment, flags, experiment.settings)
    experiments.check(config, experiment, tasks_version)
    if config.role == "worker":
        tasks_of(
            config, experiment.created_by
        )  # task code that this user has not named ends the start before any library is loaded
    if identity is None and experiment.key:
        require_library("an experiment that its founder has signed")
        identity = load_identity(str(home_of(config) / KEY_FILE), shared)
    return config, store, experiment, identity


def open_node(
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
    *,
    tasks_version: str,
    console: Callable[[str], None] | None = print,
    vet: Vet = lambda config, say: None,
    correct: bool = False,
) -> Node:
    """Join an experiment, or begin it, as a node that has not started its loop; `vet` and `correct` as in `load_config`."""
    say = console or (lambda line: None)
    trackers = list(filter(None, (configuration.load(environment, flags).track or "").split(",")))
    require_trackers(trackers)
    config, store, experiment, identity = load_config(environment, flags, tasks_version, vet=vet, correct=correct, say=say)
    clock, news, session = SystemClock(), Newsbox(), secrets.token_hex(8)
    layout = Layout(experiment.experiment)
    store.clock = clock
    store.expect(layout.experiment)
    local = claim(config, experiment, say)
    config = configuration.load(environment, dict(flags) | {"node_id": local.node_id}, experiment.settings)
    launcher = launcher_of(environment)
    journal = Journal(local.record, layout, local.node_id, clock, console, stamps=launcher is not None)
    if trackers and config.role == "worker":
        journal.trackers = Trackers(trackers, home_of(config) / "trackers", layout.experiment_name, local.node_id, journal.say)
    journal.state("starting", -1)
    for warning in config.warnings:
        journal.say(f"warning: {warning}")
    for line in experiments.departures(config, experiment):
        journal.say(line)
    info = journal.system_info(pid=os.getpid(), cores=os.cpu_count(), role=config.role, session=session)
    member = None
    if config.store is None:
        register(store, layout, registration(config, clock, session))
    else:
        member = enter(
            config,
            store,
            experiment,
            identity,
            folder=local.path,
            record=local.record,
            session=session,
            clock=clock,
            news=news,
            doing=lambda: journal.doing,
        )
        member.share(layout.system_info(local.node_id), info)
        member.open_logs()
        journal.tell(news.take())
        if identity:
            journal.say(f"signing with the public key {identity.public}")
        if experiment.key:
            journal.say(f"others join with: rl-swarm join {experiments.address(store, experiment)}")
    return Node(config, clock, Stop(), experiment, local, journal, news, member, local.secret, launcher)


def make_coordinator(node: Node) -> Coordinator:
    assert node.member is not None, "a coordinator has a store"
    return Coordinator(node.config, node.member, node.journal, node.stop)


def make_worker(node: Node, learner: Learner, checkpoints: Checkpoints, push: Push | None = None) -> Worker:
    """Wire the loop of a worker. Another kind of swarm is added here."""
    swarm: Swarm = Alone(node.news)
    if node.member:
        swarm = StoreSwarm(node.member, node.config, learner.tasks.verify, node.secret, node.local.path / "quarantine")
    return Worker(node.config, learner, swarm, node.journal, checkpoints, node.stop, push)
