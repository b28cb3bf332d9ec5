"""A long run of stand-in workers with retention: the rollouts' files and bytes, and the time of a round, must not grow.

    python -m checks.tidy [--rounds 2000] [--nodes 8] [--keep 10] [--keep-all] [--folder FOLDER]

The shipped worker, exchange, publisher, journal and retention run in one process on a folder of this disk, with stand-ins for the
learning parts. Prints a table by stretch of the run, and exits 1 if the last ones are above the second by more than the allowance.
Rewards, announcements and journals are the record of a run: they grow by a fixed amount each round, in every stretch alike. With
`--folder` the run stays there, for whoever needs a long one; with `--keep-all` nothing is removed, for comparison.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rl_swarm.config import Config, load
from rl_swarm.node.worker import Learner, Worker
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.membership import Membership
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.swarm.rounds import Announcement, Rounds
from tests.support.clocks import VirtualClock
from tests.support.members import LAYOUT, member_of, worker_of
from tests.support.standins import TASKS_VERSION, StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer

STRETCHES = 10
ROUND_SECONDS = 20.0  # of virtual time
ALLOWED = {"rollout_files": 1.0, "rollout_kb": 1.05, "milliseconds": 1.5, "operations": 1.15}  # times the second stretch


@dataclass(frozen=True)
class Stretch:
    """Files and bytes at the end of a stretch; milliseconds and operations of one worker in one round, on average."""

    rounds: int
    rollout_files: int
    rollout_kb: float
    other_files: int
    other_kb: float
    milliseconds: float
    operations: float


class Run:
    """A coordinator and workers that play round after round in turn."""

    def __init__(self, folder: Path, rounds: int, nodes: int, keep: int | None) -> None:
        self.root = folder / "store"
        self.root.mkdir()
        self.clock = VirtualClock()
        self.rounds = rounds
        settings = {
            "MODEL_NAME": "nano",
            "MAX_ROUNDS": rounds,
            "NUM_TRAIN_SAMPLES": 4,
            "NUM_TRANSPLANT_TREES": 4,
            "NUM_GENERATIONS": 4,
        }
        if keep is not None:
            settings |= {"ROLLOUT_CLEANUP_ENABLED": "true", "ROLLOUT_KEEP_LAST_N_ROUNDS": keep}
        config = load({name: str(value) for name, value in settings.items()})
        experiments.publish(self._store(), LAYOUT, config, TASKS_VERSION, self.clock)
        self.boss = self._member(folder, replace(config, node_id="boss", role="coordinator"))
        self.announcements = Rounds(self.boss.store, LAYOUT, rounds)
        self.workers = [self._worker(folder, replace(config, node_id=f"w{number}", eval_interval=0)) for number in range(nodes)]

    def _store(self) -> FolderStore:
        return FolderStore(self.root, self.clock, local=True)

    def _member(self, folder: Path, config: Config) -> Membership:
        store = self._store()
        register(store, LAYOUT, Registration(config.node, config.role, self.clock.wall(), "nano", config.node, "1", "s"))
        return member_of(store, folder, config.node, self.clock, config=config)

    def _worker(self, folder: Path, config: Config) -> Worker:
        learner = Learner(StandInTasks(config.node), StandInPolicy(), StandInTrainer())
        return worker_of(self._member(folder, config), folder, config, learner, StandInCheckpoints())

    def play(self, number: int) -> None:
        names = sorted(worker.config.node for worker in self.workers)
        opened = Announcement(number, "boss", "s", 1, self.clock.wall(), names, names if number else [])
        self.announcements.announce(opened)
        self.boss.retention.reached(number)
        self.boss.publisher.pump()
        for worker in self.workers:
            self.clock.sleep(ROUND_SECONDS / len(self.workers))
            worker.play(number)

    def close(self) -> None:
        for member in (self.boss, *(worker.swarm.member for worker in self.workers)):  # type: ignore[attr-defined]
            member.publisher.close(0.0)

    def operations(self) -> int:
        return sum(
            sum(worker.swarm.member.store.counts[kind] for kind in ("put", "get", "list", "delete")) for worker in self.workers
        )  # type: ignore[attr-defined]

    def measure(self) -> list[Stretch]:
        stretches, each = [], self.rounds // STRETCHES
        for stretch in range(STRETCHES):
            began, operations = time.perf_counter(), self.operations()
            for number in range(stretch * each, (stretch + 1) * each):
                self.play(number)
            took = (time.perf_counter() - began) / each / len(self.workers) * 1e3
            done = (self.operations() - operations) / each / len(self.workers)
            stretches.append(Stretch((stretch + 1) * each, *self._sizes(), took, done))
            print(f"round {stretches[-1].rounds} of {self.rounds}", file=sys.stderr, flush=True)
        self.close()
        return stretches

    def _sizes(self) -> tuple[int, float, int, float]:
        files = [path for path in self.root.rglob("*") if path.is_file()]
        sizes = {path: path.stat().st_size / 1e3 for path in files}
        rollouts = [path for path in files if path.is_relative_to(self.root / LAYOUT.rollouts)]
        kept = sum(sizes[path] for path in rollouts)
        return len(rollouts), kept, len(files) - len(rollouts), sum(sizes.values()) - kept


def table(stretches: Sequence[Stretch]) -> list[str]:
    titles = (
        "rounds | rollout files | rollouts, KB | other files | other, KB | ms a round and worker | operations a round and worker"
    )
    lines = [f"| {titles} |", "|---|---|---|---|---|---|---|"]
    for each in stretches:
        sizes = f"{each.rounds} | {each.rollout_files} | {each.rollout_kb:.0f} | {each.other_files} | {each.other_kb:.0f}"
        lines.append(f"| {sizes} | {each.milliseconds:.1f} | {each.operations:.1f} |")
    return lines


def growth(stretches: Sequence[Stretch]) -> list[str]:
    """What is not flat, in words. The second stretch is compared with the mean of the last three: the machine may be busy."""
    problems = []
    for name, times in ALLOWED.items():
        before, after = getattr(stretches[1], name), fmean(getattr(each, name) for each in stretches[-3:])
        if after > before * times:
            problems.append(f"{name} grew from {before:.1f} to {after:.1f}, allowed is {before * times:.1f}")
    added = [after.other_files - before.other_files for before, after in pairwise(stretches[1:])]
    if max(added) > min(added) * 1.05:
        problems.append(f"the other files grew by {min(added)} to {max(added)} a stretch")
    return problems


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run stand-in workers with retention for long, and fail if they grow.")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--keep", type=int, default=10)
    parser.add_argument("--keep-all", action="store_true")
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args(arguments)
    keep = None if chosen.keep_all else chosen.keep
    if chosen.folder:
        chosen.folder.mkdir(parents=True)
        stretches = Run(chosen.folder, chosen.rounds, chosen.nodes, keep).measure()
    else:
        with tempfile.TemporaryDirectory() as folder:
            stretches = Run(Path(folder), chosen.rounds, chosen.nodes, keep).measure()
    print(*table(stretches), sep="\n")
    problems = growth(stretches)
    print(*(problems or ["flat: rollouts, time and operations a round"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
