"""What sharing costs in a swarm of 10, 1,000 and 10,000 nodes on a bucket: requests, bytes and seconds per node and round.

The bucket is simulated in memory and in virtual time, with latencies of a bucket in the same region and pages of 1,000 names. All
nodes publish every round. Ten of them, spread over the swarm, also play every round with the shipped loop, and are measured, with
journals, heartbeats and looks for the next round, and without checkpoints. Only what learns is a stand-in.
"""

import argparse
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.exchange import EXTERNAL, OWN, publish_others
from rl_swarm.clock import Clock
from rl_swarm.config import Config
from rl_swarm.errors import NotFound
from rl_swarm.node.coordinator import MOST_NAMED
from rl_swarm.node.journal import Journal
from rl_swarm.node.worker import Learner, Worker
from rl_swarm.processes.stopping import Stop
from rl_swarm.store.base import Store
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.membership import enter
from rl_swarm.swarm.protocol import Newsbox
from rl_swarm.swarm.read_ahead import Plan, ReadAhead
from rl_swarm.swarm.rounds import Announcement, Rounds
from rl_swarm.swarm.through_store import StoreSwarm
from tests.support.clocks import VirtualClock
from tests.support.members import LAYOUT
from tests.support.standins import TASKS_VERSION, StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer

PAGE = 1_000  # names in one answer to a listing
SECONDS = {"put": 0.04, "get": 0.02, "list": 0.06, "delete": 0.03}  # of one request
ROUND_SECONDS, WAITING_SECONDS = 60, 10  # a round, and how much of it a node waits for the next one
MEASURED, ROUNDS, UNCOUNTED = 10, 4, 3  # nodes, rounds that count, and rounds before them: until the window is full
SIZES = (10, 1_000, 10_000)


class SimulatedBucket(Store):
    """Objects by folder, shared by all nodes; each node has a handle that counts its requests. `clock` is the node's own."""

    journal_seconds = 30.0

    def __init__(self, objects: dict[str, dict[str, bytes]], clock: Clock) -> None:
        super().__init__("s3://simulated", clock)
        self.objects = objects
        self.requests: Counter[str] = Counter()

    def _ask(self, kind: str, times: int = 1) -> None:
        self.requests[kind] += times
        self.clock.sleep(times * SECONDS[kind])

    def _put(self, key: str, data: bytes) -> bool:
        self._ask("put")
        folder, _, name = key.rpartition("/")
        if name in self.objects[folder]:
            return False
        self._rewritten(folder, name, data)
        return True

    def _rewrite(self, key: str, data: bytes) -> None:
        self._ask("put")
        folder, _, name = key.rpartition("/")
        self._rewritten(folder, name, data)

    def _rewritten(self, folder: str, name: str, data: bytes) -> None:
        self.objects[folder][name] = data
        while "/" in folder:
            folder, _, name = folder.rpartition("/")
            self.objects[folder].setdefault(name + "/", b"")

    def _get(self, key: str, limit: int, offset: int) -> bytes:
        self._ask("get")
        folder, _, name = key.rpartition("/")
        if name not in self.objects.get(folder, {}):
            raise NotFound(key)
        return self.objects[folder][name][offset:][: limit + 1]

    def _size(self, key: str) -> int:
        return len(self._get(key, 1 << 40, 0))

    def _list(self, folder: str) -> list[str]:
        names = sorted(self.objects.get(folder.rstrip("/"), {}))
        self._ask("list", max(1, math.ceil(len(names) / PAGE)))
        return names

    def _list_from(self, folder: str, after: str, most: int) -> list[str]:
        names = [name for name in sorted(self.objects.get(folder.rstrip("/"), {})) if name > after][:most]
        self._ask("list", max(1, math.ceil(len(names) / PAGE)))
        return names

    def _delete(self, key: str) -> None:
        self._ask("delete")
        folder, _, name = key.rpartition("/")
        self.objects[folder].pop(name, None)


class Inline(ReadAhead):
    """Reads ahead in the loop's own thread; `seconds` is how long that took, which a real node spends generating."""

    seconds = 0.0

    def __init__(self, clock: Clock) -> None:
        super().__init__(background=True)
        self._clock = clock

    def begin(self, plan: Plan, most: int, fetch: Callable[[str], bytes]) -> None:
        began, self._ending = self._clock.monotonic(), False
        self._run(plan, most, fetch)
        self.seconds += self._clock.monotonic() - began


def make_worker(objects: dict[str, dict[str, bytes]], folder: Path, node_id: str, start: float) -> Worker:
    """A worker of the shipped loop, on a clock of its own, so that its seconds are its own."""
    clock = VirtualClock()
    clock.now = start
    store, news, own = SimulatedBucket(objects, clock), Newsbox(), folder / node_id
    own.mkdir()
    config = Config(node_id=node_id, own_count=OWN, external_count=EXTERNAL, model="m")
    experiment = Experiment(1, LAYOUT.experiment_name, "0" * 16, 0.0, "", {}, TASKS_VERSION, (2, 256))
    journal = Journal(own / "record", LAYOUT, node_id, clock, None)
    member = enter(
        config,
        store,
        experiment,
        None,
        folder=own,
        record=own / "record",
        session=node_id,
        clock=clock,
        news=news,
        doing=lambda: journal.doing,
        background=False,
    )
    learner = Learner(StandInTasks(node_id), StandInPolicy(), StandInTrainer())
    swarm = StoreSwarm(member, config, learner.tasks.verify)
    swarm.exchange._ahead = Inline(clock)
    return Worker(config, learner, swarm, journal, StandInCheckpoints(), Stop())


def play(worker: Any, number: int) -> float:
    """Play a round of ROUND_SECONDS; return the seconds for which the loop waited for the store."""
    clock, publisher = worker.swarm.member.clock, worker.swarm.member.publisher
    if number == 0:
        worker.swarm.rounds.survey()
    ends = clock.monotonic() + ROUND_SECONDS
    for _ in range(WAITING_SECONDS):
        worker.swarm.rounds.advance(number - 1)
        clock.sleep(1.0)
    ahead, began = worker.swarm.exchange._ahead, clock.monotonic()
    before = ahead.seconds
    worker.play(number)
    waited = clock.monotonic() - began - (ahead.seconds - before)
    while clock.monotonic() < ends:
        publisher.pump()  # every few seconds, as the thread that publishes does
        clock.sleep(min(5.0, max(0.0, ends - clock.monotonic())))
    return waited


def measure(nodes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        objects: dict[str, dict[str, bytes]] = defaultdict(dict)
        start = VirtualClock()
        names = [f"node-{number:05d}" for number in range(nodes)]
        measured = names[:: max(1, nodes // MEASURED)][:MEASURED]
        others = SimulatedBucket(objects, VirtualClock())
        boss, rest = Rounds(others, LAYOUT), sorted(set(names) - set(measured))
        workers = [make_worker(objects, Path(folder), name, start.now) for name in measured]
        waited, reached = 0.0, 0
        for number in range(UNCOUNTED + ROUNDS):
            named = names[:MOST_NAMED]
            boss.announce(Announcement(number, "boss", "s", 1, start.now, named, named if number else []))
            publish_others(others, rest, number)
            if number == UNCOUNTED:
                for worker in workers:
                    worker.swarm.member.store.requests.clear()
                    worker.swarm.member.store.counts.clear()
            for worker in workers:
                before = len(worker.swarm.exchange.trained)
                seconds = play(worker, number)
                if number >= UNCOUNTED:
                    waited += seconds
                    reached += len(worker.swarm.exchange.trained) - before - OWN
        return _per_round(workers, waited, reached)


def _per_round(workers: list[Any], waited: float, reached: int) -> dict[str, float]:
    plays = len(workers) * ROUNDS
    requests, counts = Counter[str](), Counter[str]()
    for worker in workers:
        requests.update(worker.swarm.member.store.requests)
        counts.update(worker.swarm.member.store.counts)
    row = {f"{kind}s": requests[kind] / plays for kind in SECONDS}
    row["requests"] = sum(requests.values()) / plays
    row["kilobytes_out"] = counts["bytes_out"] / plays / 1000
    row["kilobytes_in"] = counts["bytes_in"] / plays / 1000
    row["seconds_waited"] = waited / plays
    row["external_reached"] = reached / plays
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-results/crowd.json"))
    output = parser.parse_args().output
    results = {str(nodes): measure(nodes) for nodes in SIZES}
    first, *_, last = results.values()
    print("per node and round  " + "  ".join(f"{column:>16}" for column in first))
    for nodes, row in results.items():
        print(f"{nodes:>13} nodes  " + "  ".join(f"{figure:16.2f}" for figure in row.values()))
    growth = {column: last[column] / first[column] for column in ("requests", "seconds_waited")}
    print(f"{SIZES[-1]:,} nodes / {SIZES[0]} nodes: requests {growth['requests']:.2f}, seconds {growth['seconds_waited']:.2f}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"per_node_round": results, "growth": growth}, indent=1) + "\n")
    if max(growth.values()) > 1.5:
        raise SystemExit("the cost of a node grows with the swarm")


if __name__ == "__main__":
    main()
