"""The demo on five seeds, as a newcomer runs it on an idle machine."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, median

import pytest

from rl_swarm.runs import progress
from rl_swarm.runs.summary import summarise
from rl_swarm.store.folder import FolderStore
from rl_swarm.store.memory import MemoryStore
from rl_swarm.swarm.layout import Layout
from tests.support.learning import LAYOUT, make_worker
from tests.support.members import copy_journals
from tests.support.rows import metrics

pytestmark = [pytest.mark.alone, pytest.mark.timeout(3000)]


def test_the_demo_learns_on_five_seeds(tmp_path: Path) -> None:
    store = MemoryStore()
    frozen = make_worker(store, tmp_path, "base", LEARNING_RATE=0, MAX_ROUNDS=40, EVAL_INTERVAL=0)
    frozen.run()
    copy_journals(frozen)
    base = fmean(row["reward"] for row in metrics(store, LAYOUT, "base"))
    ratios, beyond_the_form = [], []
    for seed in range(1, 6):
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEED": str(seed), "EXPERIMENT_NAME": f"demo-{seed}"}
        environment["GDRIVE_PATH"] = str(tmp_path / "store")
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "rl_swarm.cli", "demo"], env=environment, capture_output=True, text=True, timeout=900
        )
        seconds = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        layout = Layout(f"demo-{seed}")
        folder = FolderStore(tmp_path / "store")
        workers = [f"worker_{number}" for number in range(1, 5)]
        last = fmean(row["reward"] for worker in workers for row in metrics(folder, layout, worker)[-10:])
        evaluated = [
            [row["data"] for row in progress.events(folder, layout, worker) if row["event_type"] == "evaluation"]
            for worker in workers
        ]
        before, after = fmean(each[0]["held_out"] for each in evaluated), fmean(each[-1]["held_out"] for each in evaluated)
        in_form = evaluated[0][0]["held_out_in_form"]
        ratios.append(last / base)
        beyond_the_form.append(after - in_form)
        print(
            f"seed {seed}: base {base:.4f}, last ten {last:.4f}, ratio {last / base:.1f}, held out {before:.3f} -> {after:.3f}, "
            f"base in the form {in_form:.3f}, {seconds:.0f} s"
        )
        assert after > before
        assert f"{last:.3f}" in done.stdout, "the card's reward is not the run's"
        assert summarise(folder, layout) is not None
    print(f"median ratio {median(ratios):.1f}, worst {min(ratios):.1f}")
    assert median(ratios) >= 5
    assert median(beyond_the_form) > 0, "they know more than the base model does in the form that is rewarded"
