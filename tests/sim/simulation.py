"""Whole swarms in virtual time: the shipped worker, coordinator, publisher and journal over a drive from hell.

A seed decides everything: how many nodes, their settings, how bad each machine's drive is, who joins late, is killed, frozen or
stopped, and when. Only what learns is a stand-in. It knows how to run a swarm and what befell it; whether that was right is for
invariants.py.

    python -m tests.sim.simulation SEED [LAST]    replay a seed and print what happened, or run seeds up to LAST
"""

import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from rl_swarm import config as configuration
from rl_swarm.config import Config
from rl_swarm.errors import StoreAway
from rl_swarm.identity import Identity
from rl_swarm.node import journal as journal_module
from rl_swarm.node.assembly import Node, make_coordinator, make_worker
from rl_swarm.node.journal import Journal
from rl_swarm.node.local import LocalFolder
from rl_swarm.node.worker import Learner
from rl_swarm.processes.stopping import DRAIN_SECONDS, MERGE_SECONDS, Stop
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import GROUP_LIMITS, Completion, Question, Rollout
from rl_swarm.swarm import publisher as publisher_module
from rl_swarm.swarm import read_ahead as read_ahead_module
from rl_swarm.swarm.copies import Copies
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.membership import enter
from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.swarm.publisher import Publisher
from tests.sim.baton import Baton, BatonClock, BatonThreading
from tests.sim.drive_from_hell import Cloud, DriveFromHell, Storm, Temper
from tests.sim.invariants import Witness
from tests.support.clocks import VirtualClock
from tests.support.standins import TASKS_VERSION, StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer

INTERVAL = 20.0
LONGEST_LOAD = 2 * INTERVAL  # seconds between the registration of a worker and its first round
LAYOUT = Layout("trial")


@dataclass(frozen=True)
class Fault:
    """What befalls a node: `kill`, `freeze`, `stop` or `crash` (our own bug); `seconds` is how long it is away."""

    at: float
    kind: str
    node_id: str
    seconds: float


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides."""

    seed: int
    workers: tuple[str, ...]
    coordinators: tuple[str, ...]
    rounds: int
    advance: str
    own: int
    external: int
    group: int
    window: int
    frequency: str
    cache: bool
    fetch_peers: int
    checkpoint_interval: int
    temper: Temper
    storms: tuple[tuple[str, Storm], ...]
    joins: tuple[tuple[str, float], ...]
    loads: tuple[tuple[str, float], ...]
    cleaners: tuple[str, ...]  # nodes that remove old rollouts
    keep: int
    archive: bool
    faults: tuple[Fault, ...]

    @property
    def limit(self) -> float:
        """Virtual seconds after which whoever still runs waits for ever: every round as slow as can be, and all faults in a row."""
        slowest_round = 12.0 + 4.0 + 15.0 + 2.5 * INTERVAL
        restarts = sum(fault.seconds for fault in self.faults if fault.seconds != float("inf"))
        away = restarts + sum(storm.ends - storm.begins for _, storm in self.storms) + LONGEST_LOAD * (1 + len(self.faults))
        return self.rounds * slowest_round + away + max(at for _, at in self.joins) + 10 * INTERVAL + DRAIN_SECONDS


def draw(seed: int) -> Scenario:
    """The scenario of a seed. Most swarms are small, so that many fit into a minute; some have dozens of workers."""
    chance = random.Random(stream_seed("scenario", seed))
    size = chance.choices([1, chance.randint(2, 5), chance.randint(5, 10), chance.randint(20, 40)], [5, 50, 38, 7])[0]
    large = size > 15
    rounds = chance.randint(4, 6) if large else chance.randint(5, 14)
    workers = tuple(f"w{number}" for number in range(size))
    boss_count = chance.choices([0, 1, 2, 3], [25, 55, 15, 5])[0]
    coordinators = tuple(f"boss{number}" for number in range(boss_count)) if size > 1 else ()
    duration = rounds * 15.0
    temper, storms = _weather(chance, workers + coordinators, duration)
    cleaners, keep, archive = _retention(random.Random(stream_seed("retention", seed)), workers, coordinators)
    late = [(node, chance.random() * duration * 0.6) for node in workers[1:] + coordinators if chance.random() < 0.25]
    return Scenario(
        seed=seed,
        workers=workers,
        coordinators=coordinators,
        rounds=rounds,
        advance="timer" if chance.random() < 0.1 else "hybrid",
        own=chance.randint(1, 3),
        external=chance.choice([0, 1, 2, 2, 3, 4]),
        group=chance.choice([2, 4]),
        window=chance.randint(1, 4),
        frequency=chance.choice(["stage", "stage", "generation", "round"]),
        cache=chance.random() < 0.8,
        fetch_peers=chance.choice([2, 10, 10]),
        checkpoint_interval=chance.randint(1, 5),
        temper=temper,
        storms=storms,
        joins=tuple((node, dict(late).get(node, chance.random() * 3.0)) for node in workers + coordinators),
        faults=_faults(chance, workers, coordinators, duration),
        loads=_loads(random.Random(stream_seed("loads", seed)), workers),
        cleaners=cleaners,
        keep=keep,
        archive=archive,
    )


def _weather(chance: random.Random, nodes: Sequence[str], duration: float) -> tuple[Temper, tuple[tuple[str, Storm], ...]]:
    """A tenth of all drives are as good as a local disk; the others have some habits, each mildly or badly."""
    if chance.random() < 0.1:
        return Temper(latency=0.02), ()

    def some(*levels: float) -> float:
        return chance.choice((0.0, *levels))

    temper = Temper(
        latency=chance.choice([0.02, 0.2, 0.6]),
        lag=some(3.0, 15.0, 40.0),
        stale=chance.choice([5.0, 20.0, 60.0]),
        listing=some(0.05, 0.2),
        reading=some(0.02, 0.08, 0.2),
        missing=some(0.02, 0.1),
        failing=some(0.02, 0.1),
        writing=some(0.05, 0.2),
    )
    storms = []
    for node in nodes:
        if chance.random() < 0.3:
            begins = chance.random() * duration
            storm = Storm(
                chance.choice(["dead", "busy", "full"]), begins, begins + chance.choice([3.0, 30.0, 90.0]) * chance.random()
            )
            storms.append((node, storm))
    if chance.random() < 0.1:  # the store itself is away from all at once
        begins = chance.random() * duration
        storms += [(node, Storm("dead", begins, begins + 60.0)) for node in nodes]
    return temper, tuple(storms)


def _loads(chance: random.Random, workers: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Some workers take long to load their model."""
    return tuple((node, chance.random() * (LONGEST_LOAD if chance.random() < 0.3 else 2.0)) for node in workers)


def _retention(chance: random.Random, workers: tuple[str, ...], coordinators: tuple[str, ...]) -> tuple[tuple[str, ...], int, bool]:
    """Who removes old rollouts (nobody, all nodes, the coordinators, the workers), how many rounds stay, and whether to archive."""
    cleaners = chance.choice([(), workers + coordinators, workers + coordinators, coordinators, workers])
    return cleaners, chance.randint(1, 5), chance.random() < 0.5


def _faults(chance: random.Random, workers: Sequence[str], coordinators: Sequence[str], duration: float) -> tuple[Fault, ...]:
    faults = []
    for node in (*workers, *coordinators):
        while chance.random() < (0.3 if len(workers) <= 10 else 0.1):
            kind = chance.choices(["kill", "freeze", "stop", "crash"], [6, 2, 2, 1])[0]
            kind = "kill" if kind == "crash" and node in coordinators else kind
            seconds = chance.choice([1.0, 15.0, 3 * INTERVAL]) * (0.2 + chance.random())
            faults.append(Fault(chance.random() * duration, kind, node, seconds))
    if chance.random() < 0.1:
        moment = chance.random() * duration
        faults += [Fault(moment, "kill", node, 1.0 + chance.random() * 20.0) for node in (*workers, *coordinators)]
    if coordinators and chance.random() < 0.15:  # the last coordinator goes and never comes back
        faults += [Fault(chance.random() * duration, "kill", node, float("inf")) for node in coordinators]
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.node_id)))


# What learns, with virtual seconds


class TimedPolicy(StandInPolicy):
    """With `bug` set, the next answer meets it; `met` is told."""

    def __init__(self, clock: BatonClock, round_seconds: float, met: Callable[[], None]) -> None:
        super().__init__()
        self.clock = clock
        self.round_seconds = round_seconds
        self.met = met
        self.bug: Exception | None = None

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        for group in super().answer(questions, group_size, seed):
            self.clock.sleep(self.round_seconds / len(questions))
            if self.bug:
                self.met()
                raise self.bug
            yield group


class TimedTrainer(StandInTrainer):
    """Its state holds what it was ever trained on, so that a restored one knows exactly what its weights contain."""

    def __init__(self, clock: BatonClock, seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = seconds
        self.batches: list[list[str]] = []

    def update(self, batch: Sequence[Rollout], rate_share: float = 1.0) -> dict[str, float]:
        self.clock.sleep(self.seconds)
        self.batches.append([rollout.id for rollout in batch])
        return super().update(batch)

    def state(self) -> dict[str, Any]:
        return super().state() | {"batches": [list(batch) for batch in self.batches]}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.batches = [list(batch) for batch in state["batches"]]


@dataclass
class Machine:
    """One node's computer: what survives the death of its process, and the process that runs now."""

    node_id: str
    role: str
    folder: Path
    chance: random.Random
    skew: float
    checkpoints: StandInCheckpoints
    temper: Temper
    lives: int = 0
    finished: bool = False
    stop: Stop | None = None
    policy: TimedPolicy | None = None


class Alarm(Newsbox):
    """No two processes of a simulated swarm have one name: who says so is wrong."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        super().__init__()
        self._ring = ring

    def add(self, event: str, line: str = "", **details: Any) -> None:
        super().add(event, line, **details)
        if event == "name_in_use":
            self._ring(line)


class Simulation:
    def __init__(self, scenario: Scenario, folder: Path, trace: bool = False) -> None:
        self.scenario = scenario
        self.folder = folder
        self.baton = Baton()
        self.cloud = Cloud()
        self.trace: list[str] | None = [] if trace else None
        self.witness = Witness(scenario, LAYOUT, self.baton, self.cloud, INTERVAL, self._note)
        self.machines = {node_id: self._machine(node_id) for node_id in (*scenario.workers, *scenario.coordinators)}
        self._base = _config(scenario)

    def run(self) -> "Simulation":
        with self._virtual():
            for node_id, at in self.scenario.joins:
                self._start(self.machines[node_id], at)
            self.baton.spawn("fate", "fate", self._fate)
            self.baton.run()
            self._drain()
        self.witness.conclude(self._calm("judge", 2e6))
        return self

    @property
    def fingerprint(self) -> int:
        """A number that two runs share only if the same happened in both, to the last byte but the name of their folder."""
        here, truth = (
            str(self.folder).encode(),
            sorted(self.cloud.truth().items()),
        )  # some lines of journals name a file on this disk
        stored = ((name, len(data), stream_seed(data.replace(here, b""))) for name, datas in truth for data in datas)
        return stream_seed(self.baton.now, self.baton.switches, *sorted(self.cloud.told.items()), *stored)

    # Lives of nodes

    def _start(self, machine: Machine, delay: float) -> None:
        def live() -> None:
            machine.lives += 1
            (self._work if machine.role == "worker" else self._coordinate)(machine)

        self.baton.spawn(f"{machine.node_id}", machine.node_id, live, delay)

    def _work(self, machine: Machine) -> None:
        node = self._open(machine)
        clock = cast(BatonClock, node.clock)
        machine.policy = TimedPolicy(clock, machine.chance.uniform(2.0, 12.0), lambda: self.witness.doomed(machine.node_id))
        trainer = TimedTrainer(clock, machine.chance.uniform(0.5, 2.0))
        worker = make_worker(node, Learner(StandInTasks(machine.node_id), machine.policy, trainer), machine.checkpoints)
        self.witness.watch_worker(worker, cast(DriveFromHell, node.member.store), machine.lives)
        self._note(machine.node_id, f"life {machine.lives} begins")
        clock.sleep(dict(self.scenario.loads).get(machine.node_id, 0.0))
        self._live(machine, node, worker.run)

    def _coordinate(self, machine: Machine) -> None:
        node = self._open(machine)
        coordinator = make_coordinator(node)
        self.witness.watch_coordinator(coordinator, cast(DriveFromHell, node.member.store), machine.lives)
        self._note(machine.node_id, f"life {machine.lives} begins")
        self._live(machine, node, coordinator.run)

    def _live(self, machine: Machine, node: Node, loop: Any) -> None:
        """What `Node.run` does, without the signals; killed, a process does nothing more."""
        outcome = "crashed"
        try:
            outcome = loop()
        except Exception as failure:
            node.journal.error(failure)
            self.witness.crashed(machine.node_id, failure)
            self._note(machine.node_id, f"crashed: {failure!r}")
        member = node.member
        node.journal.flush()
        member.publisher.close(DRAIN_SECONDS)
        member.merge(node.clock.monotonic() + MERGE_SECONDS)
        self._note(machine.node_id, f"ended: {outcome}")
        unsent = member.publisher.pending  # the node says so, and people start it again when the store is back
        machine.finished = outcome in ("complete", "stood down") and not unsent
        self.witness.ended(machine.node_id, outcome)
        self.baton.kill(machine.node_id, but=self.baton.current)  # the process is over, also for a thread that still waits
        if outcome == "crashed" or (outcome == "complete" and unsent):
            self._start(machine, 5.0 if outcome == "crashed" else 60.0)  # as the launcher does, or people

    def _open(self, machine: Machine) -> Node:
        """What `open_node` does, on this machine's drive; while the store is away the launcher starts it again and again."""
        node_id, clock = machine.node_id, BatonClock(self.baton, machine.skew)
        store = DriveFromHell(self.cloud, node_id, machine.chance.getrandbits(40), clock, machine.temper)
        session = f"{machine.chance.getrandbits(64):016x}"
        news = Alarm(lambda line: self.witness.check("outcome", False, node_id, line))
        local = LocalFolder(node_id, machine.folder, cast(Any, None))
        local.path.mkdir(parents=True, exist_ok=True)
        journal = Journal(local.record, LAYOUT, node_id, clock, console=None)
        config = replace(self._base, node_id=node_id, role=machine.role, cleanup=node_id in self.scenario.cleaners)
        machine.stop = Stop()
        while True:
            try:
                member = enter(
                    config,
                    store,
                    self.experiment(),
                    self.identity(node_id),
                    folder=local.path,
                    record=local.record,
                    session=session,
                    clock=clock,
                    news=news,
                    doing=lambda: journal.doing,
                )
                member.share(LAYOUT.system_info(node_id), journal.system_info(role=machine.role))
                break
            except StoreAway:
                clock.sleep(5.0)
        journal.state("starting", -1)
        return Node(config, cast(Any, clock), machine.stop, self.experiment(), local, journal, news, member)

    def identity(self, node_id: str) -> Identity | None:
        """What a node signs with, if it does."""
        return None

    def experiment(self) -> Experiment:
        return _experiment()

    # What befalls them

    def _fate(self) -> None:
        for fault in self.scenario.faults:
            self.baton.sleep(fault.at - self.baton.now)
            machine = self.machines[fault.node_id]
            if machine.lives == 0 or machine.finished:
                continue
            self._note(fault.node_id, f"{fault.kind} for {fault.seconds:.0f} s")
            if fault.kind == "freeze":
                self.baton.freeze(fault.node_id, fault.seconds)
                self.witness.frozen(fault.node_id, fault.seconds)
            elif fault.kind == "kill":
                self._end(machine, fault)
            elif fault.kind == "stop" and machine.stop:
                machine.stop.requested = True
                self.baton.sleep(5.0)
                self._end(machine, fault)  # whoever has not stopped by then is killed
            elif fault.kind == "crash" and machine.policy:
                machine.policy.bug = ZeroDivisionError("a bug of our own")
        self.baton.sleep(self.scenario.limit - self.baton.now)
        for machine in self.machines.values():
            if self.baton.running(machine.node_id):
                self.witness.still_running(machine.node_id)
                self.baton.kill(machine.node_id)

    def _end(self, machine: Machine, fault: Fault) -> None:
        if self.baton.running(machine.node_id):
            self.baton.kill(machine.node_id)
            self.witness.killed(machine.node_id)
        if not machine.finished and fault.seconds != float("inf"):
            self._start(machine, fault.seconds)

    def _drain(self) -> None:
        """The next start of every node, in fair weather: what a spool still holds reaches the store."""
        for machine in self.machines.values():
            store, clock, folder = self._calm(machine.node_id), VirtualClock(), machine.folder
            clock.now = self.baton.now
            keys = LAYOUT.journals(machine.node_id)
            copies = Copies(folder / "record", keys, store, folder / "copied", clock, lambda line: None)
            Publisher(store, folder / "spool", clock, background=False, copy=copies.bring).close(DRAIN_SECONDS)

    def _calm(self, machine: str, later: float = 1e6) -> DriveFromHell:
        """The cloud as it is when all has appeared, told without a lie."""
        clock = VirtualClock()
        clock.now = self.baton.now + later
        return DriveFromHell(self.cloud, machine, 0, clock, Temper(latency=0.0))

    # Assembly

    def _machine(self, node_id: str) -> Machine:
        role = "worker" if node_id in self.scenario.workers else "coordinator"
        chance = random.Random(stream_seed("machine", self.scenario.seed, node_id))
        storms = tuple(storm for node, storm in self.scenario.storms if node == node_id)
        temper = replace(self.scenario.temper, storms=storms)
        skew = chance.uniform(-1e5, 1e5)
        return Machine(node_id, role, self.folder / node_id, chance, skew, StandInCheckpoints(), temper)

    @contextlib.contextmanager
    def _virtual(self) -> Iterator[None]:
        """Threads on the baton; and no figure of the real machine in what nodes write."""
        threads = BatonThreading(self.baton)
        memory = patch.object(journal_module, "memory_gb", lambda: 0.0)
        with threads.instead_of(publisher_module), threads.instead_of(read_ahead_module), memory:
            yield

    def _note(self, node_id: str, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.baton.now:8.1f}  {node_id:6} {what}")


def _config(scenario: Scenario) -> Config:
    return configuration.load(
        {
            "EXPERIMENT_NAME": LAYOUT.experiment_name,
            "MODEL_NAME": "stand-in",
            "MAX_ROUNDS": str(scenario.rounds),
            "NUM_TRAIN_SAMPLES": str(scenario.own),
            "NUM_TRANSPLANT_TREES": str(scenario.external),
            "NUM_GENERATIONS": str(scenario.group),
            "COORDINATOR_ROUND_INTERVAL": str(INTERVAL),
            "ROUND_ADVANCE": scenario.advance,
            "ROLLOUT_PUBLISH_FREQUENCY": scenario.frequency,
            "ROLLOUT_WINDOW_ROUNDS": str(scenario.window),
            "ROLLOUT_FETCH_MAX_PEERS": str(scenario.fetch_peers),
            "ROLLOUT_FETCH_TIMEOUT_SECONDS": "15",
            "ROLLOUT_FETCH_CACHE": str(scenario.cache),
            "CHECKPOINT_INTERVAL": str(scenario.checkpoint_interval),
            "EVAL_INTERVAL": "0",
            "ROLLOUT_KEEP_LAST_N_ROUNDS": str(scenario.keep),
            "ROLLOUT_ARCHIVE_OLD": str(scenario.archive),
        }
    )


@cache
def _experiment() -> Experiment:
    return Experiment(1, LAYOUT.experiment_name, "0" * 16, 0.0, "w0", {}, TASKS_VERSION, GROUP_LIMITS)


def simulate(seed: int, trace: bool = False) -> Simulation:
    """Run one seed; its violations are in `.witness.violations`."""
    return simulate_scenario(draw(seed), trace)


def simulate_scenario(scenario: Scenario, trace: bool = False) -> Simulation:
    folder = Path(tempfile.mkdtemp(prefix="simulation-"))
    try:
        return Simulation(scenario, folder, trace).run()
    finally:
        shutil.rmtree(folder)


def report(simulation: Simulation) -> str:
    """What is wrong with a run, and how to see it again."""
    seed, violations = simulation.scenario.seed, simulation.witness.violations
    lines = [f"seed {seed}: {len(violations)} violations; replay with: python -m tests.sim.simulation {seed}", *violations[:10]]
    return "\n  ".join(lines)


def main(arguments: list[str]) -> int:
    first, last = int(arguments[0]), int(arguments[-1])
    failed, began = 0, time.monotonic()
    for seed in range(first, last + 1):
        simulation = simulate(seed, trace=first == last)
        if first == last:
            print(simulation.scenario, *simulation.trace or (), sep="\n")
            print(dict(simulation.cloud.told), simulation.fingerprint, simulation.witness.checks, sep="\n")
        if simulation.witness.violations:
            failed += 1
            print(report(simulation), flush=True)
    print(f"{last - first + 1} seeds, {failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
