"""Choose I and J anew for every round, from what the last rounds brought (ADAPTIVE_IJ). I + J stays the same.

While little of what a node writes is informative, it writes more: somebody has to find what teaches. When much is, it leaves most
of the writing to its peers.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec

from rl_swarm.runs.record import Round

LOOKED_BACK = 10  # rounds
LEAST = 2  # of either kind: with fewer, a node could not tell how it is doing, nor who writes


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a round brought: the share of the own rollouts that was informative, and the authors of the external ones."""

    informative: Annotated[float, msgspec.Meta(ge=0, le=1)]
    authors: tuple[str, ...]


Remembered = Annotated[tuple[Past, ...], msgspec.Meta(max_length=LOOKED_BACK)]


def remembered(past: Sequence[Past], row: Round) -> Remembered:
    """The last rounds, with this one."""
    authors = {rollout_id.partition("/")[0] for rollout_id in row.external_ids}
    return (*past, Past(row.own_used / row.own_wanted, tuple(sorted(authors))))[-LOOKED_BACK:]


def adapted(own: int, external: int, past: Sequence[Past]) -> tuple[int, int]:
    """I and J of the next round. I is as small as the authors found allow: I · share · authors = J."""
    total = own + external
    if not past or not external or total < 2 * LEAST:
        return own, external
    supply = len({author for each in past for author in each.authors}) * fmean(each.informative for each in past)
    own = min(max(round(total / (1 + supply)), LEAST), total - LEAST)
    return own, total - own
