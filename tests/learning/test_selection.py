import random

from rl_swarm.learning.selection import CHOICES, choose, eligible, informative
from rl_swarm.rollout import Completion, Question, Rollout


def rollout(slot: int, *rewards: float, node_id: str = "a") -> Rollout:
    return Rollout(Question("q"), tuple(Completion("c", reward=reward) for reward in rewards), node_id, 0, slot=slot)


def test_crumbs_and_floors_are_not_informative() -> None:
    assert informative(rollout(0, 0.0, 1.0))
    assert informative(rollout(0, 0.5, 0.6))
    assert not informative(rollout(0, 0.01, 0.01, 0.0))
    assert not informative(rollout(0, 0.0, 0.04))
    assert not informative(rollout(0, 1.0, 1.0))


def test_all_informative_own_and_j_of_the_informative_external() -> None:
    own = [rollout(0, 0.0, 1.0), rollout(1, 1.0, 1.0)]
    external = [rollout(slot, 0.0, float(slot % 2), node_id="b") for slot in range(10)]
    batch = choose(own, external, 3, random.Random(0))
    assert [chosen.id for chosen in batch.own] == ["a/0/0/0"]
    assert len(batch.external) == 3 and all(chosen.slot % 2 for chosen in batch.external)
    assert len(choose(own, external, 99, random.Random(0)).external) == 5


def test_the_choice_depends_on_the_generator_and_not_on_the_order_of_arrival() -> None:
    external = [rollout(slot, 0.0, 1.0) for slot in range(20)]
    first = choose([], external, 5, random.Random(7))
    assert first == choose([], external[::-1], 5, random.Random(7))
    assert first != choose([], external, 5, random.Random(8))


def test_the_choice_is_uniform() -> None:
    external = [rollout(slot, 0.0, 1.0) for slot in range(10)]
    counts = [0] * 10
    for seed in range(5000):
        for chosen in choose([], external, 2, random.Random(seed)).external:
            counts[chosen.slot] += 1
    assert all(850 < count < 1150 for count in counts), counts


def test_uniform_takes_from_all_and_matched_takes_those_about_half_right() -> None:
    external = [rollout(slot, *[1.0] * slot, *[0.0] * (8 - slot), node_id="b") for slot in range(9)]
    assert {chosen.slot for chosen in choose([], external, 99, random.Random(0), "uniform").external} == set(range(9))
    assert {chosen.slot for chosen in choose([], external, 99, random.Random(0), "matched").external} == set(range(1, 8))
    assert {chosen.slot for chosen in choose([], external, 3, random.Random(0), "matched").external} == {3, 4, 5}


def test_among_equally_matched_ones_chance_decides() -> None:
    external = [rollout(slot, 0.0, 1.0) for slot in range(20)]
    picks = {choose([], external, 1, random.Random(seed), "matched").external[0].slot for seed in range(200)}
    assert len(picks) == 20
    first = choose([], external, 5, random.Random(7), "matched")
    assert first == choose([], external[::-1], 5, random.Random(7), "matched")


def test_only_uniform_would_take_what_teaches_nothing() -> None:
    nothing = rollout(0, 1.0, 1.0)
    assert [rule for rule in CHOICES if eligible(nothing, rule)] == ["uniform"]
    assert all(eligible(rollout(0, 0.0, 1.0), rule) for rule in CHOICES)
