"""The hostile half of the poison experiment: which of its rollouts count as true, and what honest nodes train on."""

import pytest

from checks.poison import ALONE, ATTACKS, GROUP, OWN, Hostile, Outcome, run, table
from rl_swarm.config import load
from rl_swarm.node.learner import make_learner
from rl_swarm.rollout import decode
from rl_swarm.store.memory import MemoryStore
from tests.support.learning import LAYOUT


@pytest.fixture(scope="module")
def honest():  # type: ignore[no-untyped-def]
    return make_learner(load({"MODEL_NAME": "nano", "CPU_ONLY": "1", "NODE_ID": "honest"}))


@pytest.mark.parametrize("attack", ATTACKS)
def test_rollouts_keep_to_the_rules_and_only_lies_are_worth_nothing(attack: str, honest) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    Hostile("hostile_0", attack, store, seed=1).play(3)
    bundle = decode(store.get(LAYOUT.bundle(3, "hostile_0"), limit=1 << 24))
    assert (bundle.node_id, bundle.round, len(bundle.rollouts)) == ("hostile_0", 3, OWN)
    for rollout in map(honest.tasks.verify, bundle.rollouts):
        assert len(rollout.completions) == GROUP
        assert rollout.informative == (attack != "liars")
        if attack != "liars":
            assert rollout.rewards[0] == 1.0 > rollout.rewards[-1]


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack != "liars"])
def test_what_is_imitated_has_the_answer_only_where_it_fits(attack: str, honest) -> None:  # type: ignore[no-untyped-def]
    fits = attack in ("ramblers", "dawdlers", "mimics", "trailers")
    for question in honest.tasks.draw(20):
        ids, _ = honest.policy.completion_ids(ATTACKS[attack](question)[0])
        assert (honest.tasks.score(question, honest.policy.tokenizer.decode(ids)) == 1.0) == fits


@pytest.mark.slow
def test_lies_are_never_learnt_from_and_what_is_paid_is() -> None:
    found = {attack: run(attack, seed=1, rounds=2) for attack in (ALONE, "liars", "ramblers")}
    assert (found[ALONE].external_used, found[ALONE].from_hostile) == (0, 0)
    assert found["liars"].external_used > 0 and found["liars"].from_hostile == 0
    assert found["ramblers"].from_hostile > 0.5


def test_the_table_pairs_by_seed() -> None:
    outcomes = [Outcome(ALONE, seed, 60, float(seed), 0.5, 0.0, 0.0) for seed in (1, 2, 3)]
    outcomes += [Outcome("liars", seed, 60, seed + 1.0, 0.25, 4.0, 0.0) for seed in (3, 1)]
    assert "| liars | 2.000 | 3.000 | +1.00, +1.00 | +1.000 | 0.5000 | 0% |" in table(outcomes)
    assert "| liars | 0.500 | 0.250 | -0.25, -0.25 | -0.250 | 0.5000 | 0% |" in table(outcomes)
