"""How far the learning rate has fallen at a round: a share of LEARNING_RATE, the same for all nodes of a swarm.

A constant rate never settles: nano alone loses knowledge with it, and gains knowledge with one that falls (docs/results.md). The
share follows from the swarm's round, so a late joiner or a resumed node stands where the swarm stands. The warm-up counts a node's
own updates, since Adam's averages are its own.
"""

import math

FLOOR = 0.02  # of the rate, at the last round
WARMUP_UPDATES = 5


def rate_share(schedule: str, round: int, rounds: int, updates: int = WARMUP_UPDATES) -> float:
    """The share of the learning rate at a round of a run of `rounds` rounds, for a node that has made so many updates."""
    done = min(1.0, round / max(1, rounds - 1))
    left = {"linear": 1.0 - done, "cosine": (1.0 + math.cos(math.pi * done)) / 2, "constant": 1.0}[schedule]
    return (FLOOR + (1.0 - FLOOR) * left) * min(1.0, (updates + 1) / (WARMUP_UPDATES + 1))
