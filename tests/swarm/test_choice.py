import random

from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.swarm.choice import eligible, pick


def rollout(slot: int, *rewards: float, node_id: str = "a") -> Rollout:
    return Rollout(Question("q"), tuple(Completion("c", reward=reward) for reward in rewards), node_id, 0, slot=slot)


def test_crumbs_and_floors_are_not_informative() -> None:
    assert rollout(0, 0.0, 0.05).informative
    assert not rollout(0, 1.0).informative
    assert rollout(0, 0.0, 1.0).informative
    assert rollout(0, 0.5, 0.6).informative
    assert not rollout(0, 0.01, 0.01, 0.0).informative
    assert not rollout(0, 0.0, 0.04).informative
    assert not rollout(0, 1.0, 1.0).informative


def test_j_of_the_informative_ones_are_taken() -> None:
    external = [rollout(slot, 0.0, float(slot % 2), node_id="b") for slot in range(10)]
    picked = pick(external, 3, random.Random(0))
    assert len(picked) == 3 and all(chosen.slot % 2 for chosen in picked)
    assert len(pick(external, 99, random.Random(0))) == 5


def test_the_choice_depends_on_the_generator_and_not_on_the_order_of_arrival() -> None:
    external = [rollout(slot, 0.0, 1.0) for slot in range(20)]
    first = pick(external, 5, random.Random(7))
    assert first == pick(external[::-1], 5, random.Random(7))
    assert first != pick(external, 5, random.Random(8))


def test_the_choice_is_uniform() -> None:
    external = [rollout(slot, 0.0, 1.0) for slot in range(10)]
    counts = [0] * 10
    for seed in range(5000):
        for chosen in pick(external, 2, random.Random(seed)):
            counts[chosen.slot] += 1
    assert all(850 < count < 1150 for count in counts), counts


def test_uniform_takes_from_all_and_matched_takes_those_about_half_right() -> None:
    external = [rollout(slot, *[1.0] * slot, *[0.0] * (8 - slot), node_id="b") for slot in range(9)]
    assert {chosen.slot for chosen in pick(external, 99, random.Random(0), "uniform")} == set(range(9))
    assert {chosen.slot for chosen in pick(external, 99, random.Random(0), "matched")} == set(range(1, 8))
    assert {chosen.slot for chosen in pick(external, 3, random.Random(0), "matched")} == {3, 4, 5}


def test_among_equally_matched_ones_chance_decides() -> None:
    external = [rollout(slot, 0.0, 1.0) for slot in range(20)]
    picks = {pick(external, 1, random.Random(seed), "matched")[0].slot for seed in range(200)}
    assert len(picks) == 20
    first = pick(external, 5, random.Random(7), "matched")
    assert first == pick(external[::-1], 5, random.Random(7), "matched")


def test_only_uniform_would_take_what_teaches_nothing() -> None:
    nothing = rollout(0, 1.0, 1.0)
    assert [rule for rule in ("informative", "uniform", "matched") if eligible(nothing, rule)] == ["uniform"]
    assert all(eligible(rollout(0, 0.0, 1.0), rule) for rule in ("informative", "uniform", "matched"))
