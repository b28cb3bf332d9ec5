"""Eight stand-in workers play a hundred rounds on the fake of Google Drive, with the shipped loop, in virtual time."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rl_swarm.config import Config
from rl_swarm.node.worker import Learner
from rl_swarm.store import open_store
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.swarm.rounds import Announcement, Rounds
from tests.support.clocks import VirtualClock
from tests.support.drive_fake import ROOT, DriveFake, drive_fake
from tests.support.members import LAYOUT, copy_journals, member_of, worker_of
from tests.support.standins import StandInCheckpoints, StandInPolicy, StandInTasks, StandInTrainer

WORKERS, ROUNDS, OWN, EXTERNAL = 8, 100, 4, 4
GENERATING, WAITING = 40, 20  # seconds of a round
QUOTA = 325_000  # units a minute and user: https://developers.google.com/workspace/drive/api/guides/limits
READING = ("list", "changes", "get", "download")


def reads(drive: DriveFake) -> int:
    return sum(drive.meter[kind] for kind in READING)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_workers_keep_to_the_quota_and_read_less_than_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes are of one user. While a worker waits for the next round it looks for it every second, as the loop does."""
    clock = VirtualClock()
    with drive_fake(clock=clock.monotonic, lag_seconds=2.0) as drive:
        monkeypatch.setenv("DRIVE_EMULATOR_HOST", drive.endpoint)
        boss = Rounds(open_store(f"gdrive://{ROOT}", clock), LAYOUT)
        workers = [worker(clock, tmp_path, f"w{number}") for number in range(WORKERS)]
        gathering = Counter[str]()
        for each in workers:
            metered(each.swarm, drive, gathering)

        for number in range(ROUNDS):
            boss.announce(Announcement(number, "boss", "s", 1, clock.wall(), [], []))
            for _ in range(WAITING):
                clock.sleep(1)
                for each in workers:
                    each.swarm.rounds.advance(number - 1)
            for each in workers:
                clock.sleep(GENERATING / WORKERS)
                each.play(number)
                each.swarm.member.publisher.pump()

        for each in workers:
            copy_journals(each)
        plays, used = WORKERS * ROUNDS, sum(len(each.swarm.exchange.trained) for each in workers) - WORKERS * ROUNDS * OWN
        rollouts = sum("/rollouts/" in path for path in drive.paths())
    by_name, leanest = plays * (WORKERS - 1) * 2, plays * WORKERS
    spent = gathering["requests"]
    everything = sum(drive.meter.values())
    print(f"{plays} rounds of workers, {used / plays:.2f} external rollouts each; {rollouts} files of rollouts")
    print(f"requests for gathering: {spent} ({spent / plays:.2f} a round)")
    print(f"all requests: {everything} ({everything / plays:.1f} a round), {dict(drive.meter)}")
    print(f"share of finding every peer's file by name and reading it ({by_name}): {spent / by_name:.2f}")
    print(f"share of one listing a round and reading every peer's file ({leanest}): {spent / leanest:.2f}")
    print(f"most units in a minute: {drive.most_units} of {QUOTA}; refused: {dict(drive.refused)}")
    assert rollouts == plays and used / plays > 3.9
    assert not drive.refused and drive.most_units <= QUOTA
    assert spent <= by_name / 2


def worker(clock: VirtualClock, folder: Path, node_id: str) -> Any:
    store = open_store(f"gdrive://{ROOT}", clock)
    register(store, LAYOUT, Registration(node_id, "worker", clock.wall(), "m", node_id, "1", "s"))
    settings = Config(node_id=node_id, max_rounds=ROUNDS, own_count=OWN, external_count=EXTERNAL, group_size=4)
    learner = Learner(StandInTasks(node_id), StandInPolicy(), StandInTrainer())
    return worker_of(member_of(store, folder, node_id, clock), folder, settings, learner, StandInCheckpoints())


def metered(swarm: Any, drive: DriveFake, counted: Counter[str]) -> None:
    """Count the requests that a swarm makes to gather peers' rollouts."""
    original = swarm.exchange.gather

    def gather(*arguments: Any) -> Any:
        before = reads(drive)
        try:
            return original(*arguments)
        finally:
            counted["requests"] += reads(drive) - before

    swarm.exchange.gather = gather
