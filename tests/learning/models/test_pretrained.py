"""A real pretrained model through two full rounds: SmolLM2-135M-Instruct, from a package on PyPI (98 MB, never committed)."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from benchmarks.smollm2 import smollm2
from rl_swarm.config import load
from rl_swarm.learning.corrections import TOKENS_A_GUESS, Guarded, ScoredPassage
from rl_swarm.learning.engine.forward import make_reader
from rl_swarm.node.learner import make_learner
from rl_swarm.rollout import Question
from rl_swarm.store.memory import MemoryStore
from tests.support.learning import LAYOUT, make_worker, same, weights
from tests.support.members import copy_journals
from tests.support.rows import metrics

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
    copy_journals(worker)
    rows = metrics(store, LAYOUT, "smol")
    shown = ("round", "reward", "external_used", "loss", "grad_norm", "length_mean", "truncated", "seconds")
    for row in rows:
        print({key: row[key] for key in shown})
    assert [row["round"] for row in rows] == [0, 1]
    assert all(1 <= row["length_mean"] <= 32 for row in rows)
    assert all(row["external_used"] == 2 and row["grad_norm"] > 0 for row in rows)
    assert not same(before, weights(worker))


def test_a_model_finds_what_it_writes_itself_plausible_also_when_that_is_long() -> None:
    """Surprises add up with the length of a completion: the guard must not refuse honest text for being long."""
    settings = {"MODEL_NAME": str(smollm2()), "CPU_ONLY": "1", "MAX_NEW_TOKENS": "128", "NODE_ID": "smol"}
    learner = make_learner(load(settings))
    asked = ("Tell me how rain is made.", "Why is the sky blue?", "Write a short story about a dog.", "How do I bake bread?")
    questions = [Question(text) for text in asked]
    policy = learner.policy
    passages = [
        ScoredPassage(
            tuple(policy.prompt_ids(question.prompt)),
            completion.token_ids,
            replace(completion, token_ids=()),
            advantage=1.0,
            whole=True,
        )
        for question, group in zip(questions, policy.answer(questions, 4, seed=1), strict=True)
        for completion in group
    ]
    vocabulary = policy.model.config.vocab_size
    kept, spent = [], []
    with torch.no_grad():
        reader = make_reader(policy.model, policy.decoder, policy.temperature, policy.pad_id)
        for rows, reading in reader.parts(passages, 1 << 14):
            kept += Guarded(vocabulary).weights([passages[row] for row in rows], reading).tolist()
            usual_BT = reading.entropies_BT + math.log(vocabulary) / 2
            surprises_BT = (-reading.logprobs_BT - usual_BT).clamp(min=0) * reading.mask_BT
            spent += (surprises_BT.sum(-1) / reading.mask_BT.sum(-1)).tolist()
    lengths = [len(passage.completion_ids) for passage in passages]
    allowed = math.log(vocabulary) / TOKENS_A_GUESS
    print(f"tokens {fmean(lengths):.0f}, surprise a token {fmean(spent):.3f} of {allowed:.3f} nats, kept {fmean(kept):.2f}")
    assert fmean(lengths) > 2 * TOKENS_A_GUESS
    assert fmean(spent) < allowed / 2
    assert fmean(kept) >= 0.9
