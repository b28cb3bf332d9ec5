"""Words of our own are written as people write them."""

from rl_swarm.text import counted


def test_one_is_no_plural() -> None:
    assert [counted(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
