"""The learning rate over the rounds of a swarm."""

import pytest

from rl_swarm.config import SCHEDULES
from rl_swarm.learning.schedule import FLOOR, WARMUP_UPDATES, rate_share


def test_linear_falls_in_equal_steps_to_its_floor() -> None:
    shares = [rate_share("linear", number, 5) for number in range(5)]
    assert shares == pytest.approx([1.0, 1 - 0.25 * (1 - FLOOR), 1 - 0.5 * (1 - FLOOR), 1 - 0.75 * (1 - FLOOR), FLOOR])


def test_cosine_is_half_way_in_the_middle() -> None:
    shares = [rate_share("cosine", number, 5) for number in range(5)]
    assert shares[0] == 1.0 and shares[2] == pytest.approx((1 + FLOOR) / 2) and shares[4] == pytest.approx(FLOOR)
    assert 1 - shares[1] == pytest.approx(shares[3] - FLOOR), "as slow at the end as at the start"


def test_constant_stays() -> None:
    assert {rate_share("constant", number, 5) for number in range(9)} == {1.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_node_warms_up_by_its_own_updates(schedule: str) -> None:
    shares = [rate_share(schedule, 40, 100, updates) for updates in range(WARMUP_UPDATES + 2)]
    there = rate_share(schedule, 40, 100)
    assert shares[0] == pytest.approx(there / (WARMUP_UPDATES + 1)) and shares[-2:] == [there, there]
    assert shares == sorted(shares)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_of_one_round_and_rounds_beyond_the_end_have_a_rate(schedule: str) -> None:
    assert rate_share(schedule, 0, 1) == 1.0
    assert rate_share(schedule, 9, 5) == pytest.approx(rate_share(schedule, 4, 5))
