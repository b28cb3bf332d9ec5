"""Choose I anew for every round (ADAPTIVE_IJ): a node leaves writing to its peers while they write enough. I + J stays the same."""

from rl_swarm.runs.record import Round

LEAST = 2  # own rollouts: with fewer, a node could not tell how it is doing
FILLED = 0.75  # of J: the share of external rollouts that must have taught something


def next_own(row: Round, most: int) -> int:
    """I of the round after this one, at most `most`: one less if its J was filled, otherwise one more."""
    taught = row.external_used * (1 - row.external_discounted / row.external_weighed) if row.external_weighed else 0.0
    step = -1 if row.external_wanted and taught >= FILLED * row.external_wanted else 1
    return min(max(row.own_wanted + step, LEAST), most)
