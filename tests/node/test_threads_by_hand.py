"""Workers that people start by hand on one machine, without a word about threads: they share its cores."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rl_swarm.processes import threads
from rl_swarm.swarm.layout import Layout
from tests.support.processes import ROOT

TURNS = 3
SETTINGS = {"MODEL_NAME": "nano", "CPU_ONLY": "1", "MAX_ROUNDS": "80", "EVAL_INTERVAL": "0", "NUM_TRANSPLANT_TREES": "4"}
FREE = {name: value for name, value in os.environ.items() if name not in threads.VARIABLES}


def seconds(folder: Path, workers: int, **settings: Any) -> float:
    """Return how long workers take from the start of the first to the end of the last.

    Each is started when the one before has played a round and so has made its choice: the first has chosen all cores.
    """
    folder.mkdir()
    place = {"GDRIVE_PATH": str(folder / "store"), "EXPERIMENT_NAME": "trial", "RL_SWARM_HOME": str(folder / "home")}
    began, processes = time.monotonic(), list[subprocess.Popen[bytes]]()
    for number in range(workers):
        while number and not (folder / "store" / Layout("trial").reward(0, f"w{number - 1}")).exists():
            assert processes[-1].poll() is None
            time.sleep(0.1)
        environment = {**FREE, **SETTINGS, **place, "NODE_ID": f"w{number}", "PYTHONPATH": str(ROOT), **settings}
        with (folder / f"w{number}.console").open("wb") as console:
            command = [sys.executable, "-m", "rl_swarm.cli", "work"]
            processes.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=console, stderr=console))
    assert [process.wait(900) for process in processes] == [0] * workers
    return time.monotonic() - began


def compared(folder: Path, workers: int, **others: str) -> float:
    """The median of several ratios, in turns, since other programs may want the machine: as they are / with other settings."""
    ratios = []
    for turn in range(TURNS):
        free, other = seconds(folder / f"free {turn}", workers), seconds(folder / f"other {turn}", workers, **others)
        ratios.append(free / other)
        print(f"{workers} workers by hand: {free:.1f} s, with {others} {other:.1f} s: {ratios[-1]:.2f}")
    return median(ratios)


@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_two_workers_by_hand_are_as_fast_as_with_one_thread_each(tmp_path: Path) -> None:
    assert compared(tmp_path, 2, OMP_NUM_THREADS="1") < 1.3


@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_a_worker_alone_is_not_slower_than_with_threads_that_spin(tmp_path: Path) -> None:
    assert compared(tmp_path, 1, GOMP_SPINCOUNT="300000") < 1.15, "that count is what OpenMP does by default"
