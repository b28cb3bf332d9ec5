"""Old rollouts in a swarm of real processes: the documents' scenario, and two cleaners of which one is killed."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_swarm.document import seal
from rl_swarm.rollout import BUNDLE_BYTES, decode, encode
from rl_swarm.runs.validate import Expected, passed, validate
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.layout import recognised, round_of_folder
from rl_swarm.swarm.peers import Registration, register
from rl_swarm.swarm.rounds import Reward
from tests.support.processes import ROOT, LocalSwarm
from tests.swarm.test_exchange import LAYOUT, bundle

QUICK = {
    "NUM_TRANSPLANT_TREES": 2,
    "NUM_TRAIN_SAMPLES": 2,
    "NUM_GENERATIONS": 4,
    "COORDINATOR_ROUND_INTERVAL": 10,
    "STANDIN_SECONDS": 0.05,
}
CLEANING = {"ROLLOUT_CLEANUP_ENABLED": "True", "ROLLOUT_ARCHIVE_OLD": "True"}


def run(swarm: LocalSwarm) -> None:
    boss = swarm.start("boss", "coordinator")
    while not swarm.announced():  # a worker that is first goes on alone
        assert boss.poll() is None, swarm.console("boss")
        time.sleep(0.05)
    for process in [boss, swarm.start("w1"), swarm.start("w2")]:
        assert swarm.wait(process) == 0, swarm.console("boss")


def test_of_ten_rounds_the_documents_keep_five_and_archive_the_others(local_swarm: Callable[..., LocalSwarm]) -> None:
    swarm = local_swarm(MAX_ROUNDS=10, ROLLOUT_KEEP_LAST_N_ROUNDS=5, **CLEANING, **QUICK)
    run(swarm)
    root = swarm.folder / LAYOUT.rollouts
    assert sorted(path.name for path in root.iterdir()) == [f"round_{number}" for number in range(5, 10)]
    archived = sorted((swarm.folder / "archives").rglob("*.json"))
    played = {(number, node_id) for number, node_id in swarm.rewards() if number < 5}  # a node that starts late joins later
    assert len(played) >= 5 and [path.relative_to(swarm.folder).as_posix() for path in archived] == [
        f"archives/trial/rollouts/round_{number}/stage_0/{node_id}.json" for number, node_id in sorted(played)
    ]
    assert all(len(decode(path.read_bytes()).rollouts) == 2 for path in archived)
    assert not swarm.unreadable()
    found = validate(swarm.store, swarm.layout, Expected(10, 3, 2))
    assert passed(found), found


def test_the_documents_smallest_preset_runs_and_says_what_it_keeps(local_swarm: Callable[..., LocalSwarm]) -> None:
    preset = {"ROLLOUT_PUBLISH_FREQUENCY": "round", "ROLLOUT_CLEANUP_ENABLED": "true", "ROLLOUT_KEEP_LAST_N_ROUNDS": 3}
    swarm = local_swarm(MAX_ROUNDS=8, **preset, **QUICK)
    run(swarm)
    assert sorted(path.name for path in (swarm.folder / LAYOUT.rollouts).iterdir()) == [f"round_{number}" for number in range(4, 8)]
    assert not (swarm.folder / "archives").exists()
    assert "ROLLOUT_KEEP_LAST_N_ROUNDS is 3, and 4 rounds are kept" in swarm.console("w1")
    assert sum(row["external_used"] for row in swarm.metrics("w1")) > 0
    found = validate(swarm.store, swarm.layout, Expected(8, 3, 2))
    assert passed(found) and any(finding.check == "retention" for finding in found), found


def prepared(folder: Path) -> dict[str, bytes]:
    """Ten rounds of three workers; their files by key."""
    store, files = FolderStore(folder, local=True), dict[str, bytes]()
    for node_id in ("w1", "w2", "w3"):
        register(store, LAYOUT, Registration(node_id, "worker", 0.0, "nano", node_id, "1", "s"))
        for number in range(10):
            key = LAYOUT.bundle(number, node_id)
            files[key] = encode(bundle(node_id, number))
            store.put(key, files[key])
            store.put(LAYOUT.reward(number, node_id), seal(Reward(node_id, number, 0.5, 4, 0.0)))
    return files


def clean(folder: Path, node_id: str, local: bool, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.cleaner", str(folder), node_id, "9", str(local), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(50))
def test_of_two_cleaners_at_once_one_is_killed_and_nothing_is_lost_or_nested(tmp_path: Path, seed: int) -> None:
    chance, local = random.Random(seed), seed % 2 == 0
    files = prepared(tmp_path)
    pace = chance.uniform(0.002, 0.02)
    cleaners = [clean(tmp_path, node_id, local, pace) for node_id in ("boss", "boss2")]
    for each in cleaners:
        assert each.stdout and each.stdout.readline() == b"cleaning\n"
    time.sleep(chance.uniform(0, 30 * pace))
    cleaners[0].kill()
    for each in cleaners:
        each.wait()
        assert each.stdout
        each.stdout.close()
    assert cleaners[1].returncode == 0
    judge(FolderStore(tmp_path, local=True), files, half_allowed=not local)


def judge(store: FolderStore, files: dict[str, bytes], half_allowed: bool) -> None:
    assert recognised(round_of_folder, store.list(LAYOUT.rollouts)) == {5, 6, 7, 8, 9}
    for key, data in files.items():
        number = int(key.split("/round_")[1].split("/")[0])
        folder, _, name = (key if number >= 5 else key.replace("experiments/", "archives/", 1)).rpartition("/")
        node_id = name.removesuffix(".json")
        there = [each for each in store.list(folder) if each.split(".")[0] == node_id]
        found = [store.get(f"{folder}/{each}", limit=BUNDLE_BYTES) for each in there]
        assert data in found and all(each == data or (half_allowed and data.startswith(each)) for each in found), key
    depth = LAYOUT.bundle(0, "w1").count("/")
    below = [path.relative_to(store.root).as_posix() for path in (store.root / "archives").rglob("*") if path.is_file()]
    assert all(path.count("/") == depth for path in below), below
