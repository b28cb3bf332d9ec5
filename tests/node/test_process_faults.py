"""Kill, freeze or deprive real processes of disk or store at seeded moments: the survivors finish the last round.

A full disk is made with RLIMIT_FSIZE, set from outside on running processes: it needs no privileges and no mount, hits the store,
the spool, the checkpoints and the console alike, and cuts writes in the middle, as a disk that fills up does. What it cannot show
is a disk that is full for one process and not for another's files on it; the simulated drive does.
"""

import json
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from checks.reliability import PROCESS_FAULTS, record
from rl_swarm.runs import progress
from tests.node.test_swarm_processes import check_rewards
from tests.support.processes import LocalSwarm

Make = Callable[..., LocalSwarm]
WORKERS = ("w1", "w2", "w3")
INTERVAL = 2.0
LIVENESS_SECONDS = 2 * INTERVAL
SETTINGS: dict[str, Any] = {
    "COORDINATOR_ROUND_INTERVAL": INTERVAL,
    "CHECKPOINT_INTERVAL": 2,
    "NUM_TRANSPLANT_TREES": 2,
    "NUM_TRAIN_SAMPLES": 2,
    "NUM_GENERATIONS": 4,
    "EVAL_INTERVAL": 0,
}
NANO: dict[str, Any] = {"MODEL_NAME": "nano", "CPU_ONLY": "true", "OMP_NUM_THREADS": "1", "CHECKPOINT_INTERVAL": 1}


class Disaster:
    """A swarm under seeded faults; each method injects one and repairs it."""

    def __init__(self, swarm: LocalSwarm, seed: int) -> None:
        self.swarm = swarm
        self.chance = random.Random(seed)
        self.processes = {"boss": swarm.start("boss", "coordinator")} | {name: swarm.start(name) for name in WORKERS}

    def kill_a_worker(self) -> None:
        self._kill(self.chance.choice(WORKERS))

    def kill_the_coordinator(self) -> None:
        self._kill("boss")

    def kill_all(self) -> None:
        self._kill(*self.processes)

    def freeze_a_worker(self) -> None:
        """Freeze it for longer than a silent worker counts as live: the others must have continued."""
        name = self.chance.choice(WORKERS)
        before = self._newest()
        self.processes[name].send_signal(signal.SIGSTOP)
        time.sleep(LIVENESS_SECONDS * 1.25)
        after, running = self._newest(), any(self._running(other) for other in WORKERS if other != name)
        self.processes[name].send_signal(signal.SIGCONT)
        assert after > before or not running, "the swarm waited for a frozen worker"

    def fill_the_disk(self) -> None:
        limit = self.chance.choice([0, 100, 1000])
        running = [process for name, process in self.processes.items() if self._running(name)]
        for process in running:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        time.sleep(self.chance.uniform(0.5, 2.0))
        for process in running:
            if process.poll() is None:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def move_the_store(self) -> None:
        aside = self.swarm.folder.with_name("moved")
        self.swarm.folder.rename(aside)
        time.sleep(self.chance.uniform(0.3, 2.5))
        assert not self.swarm.folder.exists(), "a store that was moved away was made anew"
        aside.rename(self.swarm.folder)

    def wait_a_moment(self) -> None:
        time.sleep(self.chance.uniform(0.05, 1.0))

    def end(self, rounds: int) -> None:
        """Check that every node ends by itself at the last round and leaves only readable documents."""
        for name, process in self.processes.items():
            assert self.swarm.wait(process, 600) == 0, f"{name}: {self.swarm.console(name)[-3000:]}"
        for name in WORKERS:
            assert self.swarm.metrics(name)[-1]["round"] == rounds - 1
        assert self.swarm.announced()[-1] == rounds - 1
        assert self.swarm.unreadable() == []
        check_rewards(self.swarm, list(WORKERS))
        for name in WORKERS:
            events = progress.events(self.swarm.store, self.swarm.layout, name)
            kept = progress.kept_rounds(progress.records(self.swarm.store, self.swarm.layout, name), events)
            used = [rollout_id for row in kept for rollout_id in row.external_ids]
            assert len(used) == len(set(used)), f"{name} was trained twice on a rollout"

    def _kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
        for name in names:
            done = self.processes[name].wait() == 0  # it had ended before
            if not done:
                self.processes[name] = self.swarm.start(name, "coordinator" if name == "boss" else "worker")

    def _running(self, name: str) -> bool:
        return self.processes[name].poll() is None

    def _newest(self) -> int:
        return max((number for number, _ in self.swarm.rewards()), default=-1)


def suffer(swarm: LocalSwarm, faults: Sequence[str], rounds: int, seed: int) -> None:
    disaster = Disaster(swarm, seed)
    swarm.wait_for_round(1, 240)
    for fault in faults:
        disaster.wait_a_moment()
        getattr(disaster, fault)()
    disaster.end(rounds)
    for fault in faults:
        record(fault, "nano" if swarm.environment["MODEL_NAME"] == "nano" else "stand-in", 1)


def test_the_swarm_survives_every_fault(local_swarm: Make) -> None:
    """Inject one of each in one run. Killing all comes last: a node that starts while the store is moved would make a new one."""
    faults = ("move_the_store", "fill_the_disk", "freeze_a_worker", "kill_all")
    suffer(local_swarm(**SETTINGS, MAX_ROUNDS=24, STANDIN_SECONDS=0.3), faults, 24, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", PROCESS_FAULTS)
def test_the_swarm_survives(local_swarm: Make, fault: str) -> None:
    suffer(local_swarm(**SETTINGS, MAX_ROUNDS=12, STANDIN_SECONDS=0.2), [fault], 12, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fault", PROCESS_FAULTS)
def test_the_swarm_survives_many(local_swarm: Make, fault: str, seed: int) -> None:
    """Twenty of each fault: five in each of four runs."""
    suffer(local_swarm(**SETTINGS, MAX_ROUNDS=40, STANDIN_SECONDS=0.3), [fault] * 5, 40, seed=10 + seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", PROCESS_FAULTS)
def test_a_swarm_that_learns_survives(local_swarm: Make, fault: str) -> None:
    swarm = local_swarm(**SETTINGS | NANO, MAX_ROUNDS=15)
    swarm.program = ("rl_swarm.cli", "node")
    suffer(swarm, [fault] * 3, 15, seed=20)


def weights(swarm: LocalSwarm) -> Any:
    [path] = Path(swarm.environment["RL_SWARM_HOME"]).glob("trial-*/w1/checkpoints/checkpoint.json")
    return json.loads(path.read_text())[2]["weights"]


def lone(swarm: LocalSwarm, kills: int, seed: int) -> Any:
    """Kill a node alone so often, let it end by itself, and return its weights."""
    chance = random.Random(seed)
    process: subprocess.Popen[bytes] = swarm.start("w1")
    for _ in range(kills):
        time.sleep(chance.uniform(0.8, 2.0))
        process.kill()
        if process.wait() != 0:
            process = swarm.start("w1")
    assert swarm.wait(process, 120) == 0, swarm.console("w1")
    return weights(swarm)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_node_that_is_alone_ends_with_the_same_weights_however_often_it_is_killed(tmp_path: Path, kills: int) -> None:
    swarms = []
    for name in ("quiet", "killed"):
        (tmp_path / name).mkdir()
        swarms.append(
            LocalSwarm(tmp_path / name, **SETTINGS | {"NUM_TRANSPLANT_TREES": 0}, MAX_ROUNDS=10 + 3 * kills, STANDIN_SECONDS=0.1)
        )
    try:
        assert lone(swarms[0], 0, 1) == lone(swarms[1], kills, 1)
    finally:
        for swarm in swarms:
            swarm.close()
