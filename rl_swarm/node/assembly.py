"""Open what any node needs, wire a loop from it, run it under signals, and leave everything consistent.

Only this module, `launch.py` and `cli.py` assemble. Parts that need torch are imported where they are used.
"""

import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rl_swarm import __version__
from rl_swarm import config as configuration
from rl_swarm.clock import SystemClock
from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, Refused
from rl_swarm.identity import KEY_FILE, Identity, allowed_keys, load_identity, require_library
from rl_swarm.node.coordinator import Coordinator, CoordinatorSettings
from rl_swarm.node.journal import Journal
from rl_swarm.node.local import LocalFolder, claim, home_of, insist_on_first_founder
from rl_swarm.node.worker import Checkpoints, Evaluate, Policy, Push, Stop, Tasks, Trainer, Worker, WorkerSettings
from rl_swarm.processes.stopping import DRAIN_SECONDS, MERGE_SECONDS, launcher_of, watching_launcher
from rl_swarm.store import Store, open_store
from rl_swarm.store.aside import Aside
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.exchange import Exchange, ExchangeSettings
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Pulse, Registration, register
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.rounds import Rounds
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.tasks import tasks_of

LARGE_GROUP = 32  # completions that a peer's rollout may have, however few this node makes of its own


@dataclass(frozen=True)
class Node:
    """A node that has joined its experiment and is registered; its loop has not begun."""

    config: Config
    clock: SystemClock
    stop: Stop
    store: Store
    layout: Layout
    experiment: Experiment
    local: LocalFolder
    publisher: Publisher
    journal: Journal
    signatures: Signatures | None = None
    secret: str = ""  # without one, a node's choices follow from its seed alone
    launcher: int | None = None  # the process that started this one and must outlive it

    def run(self, loop: Callable[[], str]) -> str:
        """Run the loop; whatever happens, publish what waits and leave journals that can be read."""
        with self._signals(), watching_launcher(self.launcher, self._orphaned):
            try:
                return loop()
            except BaseException as failure:
                self.journal.error(failure)
                raise
            finally:
                self._close()

    def _close(self) -> None:
        """Publish what waits, and merge journals: within the limits that a launcher counts on."""
        self.local.mark_stopping()
        self.journal.flush()
        if self.stop.requested and self.publisher.pending:
            self.journal.show(f"publishing {self.publisher.pending} documents, at most {DRAIN_SECONDS:.0f} s")
        self.publisher.close(DRAIN_SECONDS)
        for line in self.publisher.take_news():
            self.journal.say(line)
        if self.publisher.pending:
            self.journal.say(
                f"the store is away: {self.publisher.pending} documents are kept in {self.publisher.folder}; "
                "start this node again to publish them"
            )
        try:
            Aside(lambda: self.journal.merge(MERGE_SECONDS)).result(MERGE_SECONDS)
        except TimeoutError:
            self.journal.show(f"the journals are not merged after {MERGE_SECONDS:.0f} s: their segments hold everything")

    def _ask_to_stop(self) -> None:
        self.stop.requested = True
        self.clock.wake()
        self.local.mark_stopping()

    def _orphaned(self) -> None:
        if not self.stop.requested:
            self.journal.later("orphaned", f"the launcher (process {self.launcher}) is gone: stopping as if it had asked for it")
            self._ask_to_stop()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGTERM or Ctrl-C asks the loop to stop at the next step; a second one ends it at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self.stop.requested:
                raise KeyboardInterrupt
            self._ask_to_stop()

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def load_config(
    environment: Mapping[str, str], flags: Mapping[str, str | None], tasks_version: str
) -> tuple[Config, Store, Experiment, Identity | None]:
    """Settings of this node, with the experiment's own beneath what is said here, and its key.

    Publishes the experiment if this node is the first, signed where SWARM_IDENTITY is set. In a signed one every node has a key.
    """
    config = configuration.load(environment, flags)
    configuration.require(config, "store", "experiment")
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
    clock = SystemClock()
    store.clock = clock
    layout = Layout(config.experiment_name)
    store.expect(layout.experiment)
    allowed = allowed_keys(config.allowed_keys) if config.allowed_keys else None
    if config.require_signatures:
        require_library("SWARM_REQUIRE_SIGNATURES")
    _check_home(config, store)
    local = claim(config, experiment, console or (lambda line: None))
    config = configuration.load(environment, dict(flags) | {"node_id": local.node_id}, experiment.settings)
    session = secrets.token_hex(8)
    signatures = Signatures(
        identity,
        experiment_id=experiment.experiment_id,
        announcers=experiments.announcers(experiment),
        required=config.require_signatures,
        allowed=allowed,
        book=local.keys,
        say=lambda line: journal.later("signatures", line),
    )
    _check_announcer(config, signatures)
    pulse = Pulse(store, layout, local.node_id, clock, session, lambda line: journal.later("name_in_use", line), signatures)
    publisher = Publisher(
        store,
        local.spool,
        clock,
        beat=lambda: pulse.beat(*journal.doing),
        beat_seconds=max(1.0, config.round_interval / 2),
        mine=signatures.reclaims,
    )
    journal = Journal(store, layout, local.node_id, publisher, clock, console)
    for warning in config.warnings:
        journal.say(f"warning: {warning}")
    if identity:
        journal.say(f"signing with the public key {identity.public}")
    if experiment.key:
        journal.say(f"others join with: rl-swarm join {experiments.address(store, experiment)}")
    model = experiments.public_model(config.model)
    registration = Registration(local.node_id, config.role, clock.wall(), model, local.node_id, __version__, session)
    _register(store, layout, registration, signatures, journal)
    journal.system_info(pid=os.getpid(), cores=os.cpu_count(), role=config.role, session=session)
    journal.state("starting", -1)
    return Node(
        config,
        clock,
        Stop(),
        store,
        layout,
        experiment,
        local,
        publisher,
        journal,
        signatures,
        local.secret,
        launcher_of(environment),
    )


def _register(store: Store, layout: Layout, registration: Registration, signatures: Signatures, journal: Journal) -> None:
    """Register, or say why not and go on: a coordinator needs no registration, and a worker can do without."""
    try:
        register(store, layout, registration, signatures)
    except Refused as error:
        alone = "" if registration.node_role == "coordinator" else ", and the coordinator does not wait for it"
        journal.say(f"{error}; until then this node goes on unregistered{alone}")


def _check_home(config: Config, store: Store) -> None:
    home = home_of(config)
    if "://" not in store.url and home.resolve().is_relative_to(store.url):
        raise ConfigError(
            f"RL_SWARM_HOME lies in the shared folder, got {config.home!r}: spool, checkpoints and secrets of a node belong "
            "on a disk of its own; what it needs to resume elsewhere is copied to the store"
        )


def _check_announcer(config: Config, signatures: Signatures) -> None:
    public = signatures.identity.public if signatures.identity else None
    if config.role == "coordinator" and signatures.announcers and public not in signatures.announcers:
        raise ConfigError(
            f"SWARM_IDENTITY may not announce rounds in this experiment, its key is {public}: use the founder's, or have the "
            "experiment started with SWARM_COORDINATOR_KEYS that name this one"
        )


def make_coordinator(node: Node) -> Coordinator:
    settings = CoordinatorSettings(
        node.local.node_id, node.config.max_rounds, node.config.round_interval, node.config.round_advance
    )
    return Coordinator(settings, node.store, node.layout, node.journal, node.clock, node.stop, node.signatures)


def make_worker(
    node: Node,
    *,
    tasks: Tasks,
    policy: Policy,
    trainer: Trainer,
    checkpoints: Checkpoints,
    evaluate: Evaluate | None = None,
    push: Push | None = None,
) -> Worker:
    config = node.config
    exchange = Exchange(
        node.store,
        node.layout,
        node.publisher,
        tasks.verify,
        node.clock,
        ExchangeSettings(
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
        ),
        node.local.quarantine,
        node.signatures,
    )
    settings = WorkerSettings(
        node_id=node.local.node_id,
        seed=config.seed,
        max_rounds=config.max_rounds,
        own_count=config.own_count,
        external_count=config.external_count,
        group_size=config.group_size,
        choice=config.external_choice,
        round_interval=config.round_interval,
        checkpoint_interval=config.checkpoint_interval,
        eval_interval=config.eval_interval,
    )
    return Worker(
        settings,
        tasks=tasks,
        policy=policy,
        trainer=trainer,
        rounds=Rounds(node.store, node.layout, config.max_rounds, node.signatures),
        exchange=exchange,
        publisher=node.publisher,
        journal=node.journal,
        checkpoints=checkpoints,
        clock=node.clock,
        stop=node.stop,
        evaluate=evaluate,
        push=push,
    )
