"""A node that adapts I and J writes more while little is informative, and reads more when much is."""

import pytest

from rl_swarm.node.adaptive import LOOKED_BACK, Past, adapted, remembered
from tests.support.rows import record

SEVEN = tuple(f"peer_{number}" for number in range(7))


def test_a_node_explores_while_little_is_informative_and_reads_when_much_is() -> None:
    assert adapted(4, 4, []) == (4, 4), "nothing is known yet"
    assert adapted(4, 4, [Past(0.5, ())]) == (6, 2), "nobody to take from, and still on the look-out"
    assert adapted(4, 4, [Past(0.0, SEVEN)] * 5) == (6, 2)
    assert adapted(4, 4, [Past(1 / 7, SEVEN)] * 3) == (4, 4), "I · share · authors = J"
    assert adapted(4, 4, [Past(1.0, SEVEN)] * 3) == (2, 6)
    assert adapted(4, 4, [Past(0.5, SEVEN[:3]), Past(0.5, SEVEN[2:4])]) == (3, 5), "4 authors in all, 8 / (1 + 4 / 2)"


@pytest.mark.parametrize(("own", "external"), [(8, 0), (1, 1), (1, 2)])
def test_a_node_that_shares_nothing_or_has_too_little_to_divide_changes_nothing(own: int, external: int) -> None:
    assert adapted(own, external, [Past(1.0, SEVEN)]) == (own, external)


def test_only_the_last_rounds_are_remembered() -> None:
    past: tuple[Past, ...] = ()
    for number in range(LOOKED_BACK + 3):
        past = remembered(past, record(number, own_used=1, own_wanted=4, external_ids=["b/0/0/1", "a/0/0/0", "b/1/0/0"]))
    assert past == (Past(0.25, ("a", "b")),) * LOOKED_BACK
