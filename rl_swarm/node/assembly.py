"""Open what any node needs, wire a loop from it, run it under signals, and leave everything consistent.

Only this module, `tools/launch.py` and `cli.py` assemble. Parts that need torch are imported where they are used.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_swarm import __version__
from rl_swarm import config as configuration
from rl_swarm.clock import SystemClock
from rl_swarm.config import Config
from rl_swarm.errors import ConfigError
from rl_swarm.identity import KEY_FILE, Identity, load_identity, require_library
from rl_swarm.node.coordinator import Coordinator, CoordinatorSettings
from rl_swarm.node.journal import Journal
from rl_swarm.node.local import LocalFolder, claim, home_of, insist_on_first_founder, make_private
from rl_swarm.node.worker import Checkpoints, Learner, Push, Tasks, Worker, WorkerSettings
from rl_swarm.processes.signals import on_signals
from rl_swarm.processes.stopping import DRAIN_SECONDS, MERGE_SECONDS, Stop, Stopped, launcher_of, watching_launcher
from rl_swarm.store import Store, open_store
from rl_swarm.store.aside import aside
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.alone import Alone
from rl_swarm.swarm.exchange import ExchangeSettings
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.membership import Membership, enter
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.swarm.protocol import Newsbox, Swarm
from rl_swarm.swarm.through_store import StoreSwarm
from rl_swarm.tasks import tasks_of

LARGE_GROUP = 32  # completions that a peer's rollout may have, however few this node makes of its own


@dataclass(frozen=True)
class Node:
    """A node whose loop has not begun. It is a `member` of an experiment on a store, or alone."""

    config: Config
    clock: SystemClock
    stop: Stop
    experiment: Experiment
    local: LocalFolder
    journal: Journal
    news: Newsbox
    member: Membership | None = None
    secret: str = ""  # without one, a node's choices follow from its seed alone
    launcher: int | None = None  # the process that started this one and must outlive it

    @property
    def record(self) -> Store:
        """What this node has written about itself, on its own disk."""
        return FolderStore(self.local.record, local=True)

    def run(self, loop: Callable[[], str]) -> str:
        """Run the loop; whatever happens, publish what waits and leave journals that can be read."""
        with on_signals(self._asked), watching_launcher(self.launcher, self._orphaned):
            try:
                return loop()
            except Stopped:
                self.journal.say("stopped before the first round")
                return "stopped"
            except BaseException as failure:
                self.journal.error(failure)
                raise
            finally:
                self.close()

    def close(self) -> None:
        """Publish what waits, and merge journals: within the limits that a launcher counts on."""
        self.local.mark_stopping()
        self.journal.tell(self.news.take())
        self.journal.flush()
        if self.member is None:
            return
        publisher = self.member.publisher
        if self.stop.requested and publisher.pending:
            self.journal.show(f"publishing {publisher.pending} documents, at most {DRAIN_SECONDS:.0f} s")
        publisher.close(DRAIN_SECONDS)
        for line in publisher.take_news():
            self.journal.say(line)
        if publisher.pending:
            self.journal.say(
                f"the store is away: {publisher.pending} documents are kept in {publisher.folder}; "
                "start this node again to publish them"
            )
        self._merge(self.member)

    def _merge(self, member: Membership) -> None:
        until = self.clock.monotonic() + MERGE_SECONDS
        try:
            aside(lambda: member.merge(until)).result(MERGE_SECONDS)
        except TimeoutError:
            self.journal.show(f"the journals are not merged after {MERGE_SECONDS:.0f} s: their segments hold everything")

    def _ask_to_stop(self) -> None:
        self.stop.requested = True
        self.clock.wake()
        self.local.mark_stopping()

    def _orphaned(self) -> None:
        if not self.stop.requested:
            self.news.add("orphaned", f"the launcher (process {self.launcher}) is gone: stopping as if it had asked for it")
            self._ask_to_stop()

    def _asked(self, number: int) -> None:
        """The first SIGTERM or Ctrl-C asks the loop to stop at the next step, a second one ends it at once; so does the first while
        a node starts."""
        if self.stop.requested:
            raise KeyboardInterrupt
        self._ask_to_stop()
        self.stop.obey()


def load_config(
    environment: Mapping[str, str], flags: Mapping[str, str | None], tasks_version: str
) -> tuple[Config, Store, Experiment, Identity | None]:
    """Settings of this node, with the experiment's own beneath what is said here, and its key.

    Publishes the experiment if this node is the first, signed where SWARM_IDENTITY is set. In a signed one every node has a key.
    A node alone has the experiment on its own disk.
    """
    config = configuration.load(environment, flags)
    configuration.require(config, *(("store", "experiment") if config.role == "coordinator" else ()))
    if config.store is None:
        make_private(Path(config.store_url))
    store = open_store(config.store_url)
    layout = Layout(config.experiment_name)
    identity = load_identity(config.identity, Path(store.url)) if config.identity else None
    experiment = experiments.publish(store, layout, config, tasks_version, store.clock, identity)
    insist_on_first_founder(config, store.url, experiment, identity.public if identity else None)
    config = configuration.load(environment, flags, experiment.settings)
    experiments.check(config, experiment, tasks_version)
    if config.role == "worker":
        tasks_of(config)  # code that this user has not named ends the start before any library is loaded
    if identity is None and experiment.key:
        require_library("an experiment that its founder has signed")
        identity = load_identity(str(home_of(config) / KEY_FILE), Path(store.url))
    return config, store, experiment, identity


def open_node(
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
    *,
    tasks_version: str,
    console: Callable[[str], None] | None = print,
) -> Node:
    config, store, experiment, identity = load_config(environment, flags, tasks_version)
    clock, news, session = SystemClock(), Newsbox(), secrets.token_hex(8)
    layout = Layout(experiment.experiment)
    store.clock = clock
    store.expect(layout.experiment)
    alone = config.store is None
    if not alone:
        _check_home(config, store)
    local = claim(config, experiment, console or (lambda line: None))
    config = configuration.load(environment, dict(flags) | {"node_id": local.node_id}, experiment.settings)
    journal = Journal(local.record, layout, local.node_id, clock, console)
    for warning in config.warnings:
        journal.say(f"warning: {warning}")
    info = journal.system_info(pid=os.getpid(), cores=os.cpu_count(), role=config.role, session=session)
    member = None
    if alone:
        model = experiments.public_model(config.model)
        register(store, layout, Registration(local.node_id, config.role, clock.wall(), model, local.node_id, __version__, session))
        journal.say(f"alone, without a store: everything stays in {store.url}; set GDRIVE_PATH to learn with others")
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
        journal.tell(news.take())
        if identity:
            journal.say(f"signing with the public key {identity.public}")
        if experiment.key:
            journal.say(f"others join with: rl-swarm join {experiments.address(store, experiment)}")
    journal.state("starting", -1)
    return Node(config, clock, Stop(), experiment, local, journal, news, member, local.secret, launcher_of(environment))


def _check_home(config: Config, store: Store) -> None:
    home = home_of(config)
    if "://" not in store.url and home.resolve().is_relative_to(store.url):
        raise ConfigError(
            f"RL_SWARM_HOME lies in the shared folder, got {config.home!r}: spool, checkpoints and secrets of a node belong "
            "on a disk of its own; what it needs to resume elsewhere is copied to the store"
        )


def make_coordinator(node: Node) -> Coordinator:
    assert node.member is not None, "a coordinator has a store"
    config = node.config
    settings = CoordinatorSettings(node.local.node_id, config.max_rounds, config.round_interval, config.round_advance)
    return Coordinator(settings, node.member, node.journal, node.stop)


def make_swarm(node: Node, tasks: Tasks) -> Swarm:
    """The others, as a worker's loop knows them. A third kind of swarm is made here."""
    config, member = node.config, node.member
    if member is None:
        return Alone(node.news)
    settings = ExchangeSettings(
        node_id=node.local.node_id,
        own_count=config.own_count,
        frequency=config.publish_frequency,
        choice=config.external_choice,
        window=config.window,
        fetch_peers=config.fetch_peers,
        fetch_seconds=config.fetch_seconds,
        cache=config.fetch_cache,
        most_completions=max(LARGE_GROUP, 2 * config.group_size),
        model=config.model,
        tasks_version=node.experiment.tasks_version,
        secret=node.secret,
    )
    return StoreSwarm(
        member,
        settings,
        tasks.verify,
        max_rounds=config.max_rounds,
        round_interval=config.round_interval,
        quarantine=node.local.quarantine,
    )


def make_worker(node: Node, learner: Learner, checkpoints: Checkpoints, push: Push | None = None) -> Worker:
    config = node.config
    settings = WorkerSettings(
        node_id=node.local.node_id,
        seed=config.seed,
        max_rounds=config.max_rounds,
        own_count=config.own_count,
        external_count=config.external_count,
        group_size=config.group_size,
        checkpoint_interval=config.checkpoint_interval,
        eval_interval=config.eval_interval,
    )
    swarm = make_swarm(node, learner.tasks)
    return Worker(settings, learner, swarm, node.journal, checkpoints, node.clock, node.stop, push)
