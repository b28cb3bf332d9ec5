"""A node that adapts I writes less while its peers write enough, and more again when they do not."""

import pytest

from rl_swarm.node.adaptive import LEAST, next_own
from tests.support.rows import record


def after(own: int, used: int, weighed: float = 16.0, discounted: float = 0.0, wanted: int = 4, most: int = 8) -> int:
    figures = {"external_weighed": weighed, "external_discounted": discounted}
    return next_own(record(0, own_wanted=own, external_wanted=wanted, external_used=used, **figures), most)


def test_a_node_writes_less_while_its_peers_write_enough() -> None:
    assert after(own=4, used=4) == 3
    assert after(own=4, used=3) == 3, "three quarters of J are enough"
    assert after(own=4, used=2) == 5
    assert after(own=LEAST, used=4) == LEAST
    assert after(own=8, used=0, weighed=0.0) == 8, "never more than was set"
    assert after(own=1, used=4, most=1) == 1


@pytest.mark.parametrize(("discounted", "own"), [(4.0, 3), (5.0, 5), (16.0, 5)])
def test_text_that_counts_for_nothing_fills_no_place(discounted: float, own: int) -> None:
    assert after(own=4, used=4, discounted=discounted) == own


def test_a_node_that_reads_nothing_writes_all_it_may() -> None:
    assert after(own=8, used=0, weighed=0.0, wanted=0) == 8
