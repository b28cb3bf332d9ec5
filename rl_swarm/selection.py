"""Choose the rollouts of one update: all informative own ones, and J of the informative external ones, uniformly.

A rollout is informative if its rewards differ by at least a tolerance. Only then does comparing its completions teach
anything; crumbs of partial credit below the tolerance do not count.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rl_swarm.rollout import Rollout

TOLERANCE = 0.05


@dataclass(frozen=True)
class Batch:
    own: tuple[Rollout, ...]
    external: tuple[Rollout, ...]

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        return self.own + self.external


def informative(rollout: Rollout) -> bool:
    return max(rollout.rewards) - min(rollout.rewards) >= TOLERANCE


def choose(own: Sequence[Rollout], external: Sequence[Rollout], external_count: int, chooser: random.Random) -> Batch:
    """Own rollouts are kept in order. External ones are put in order first, so that the choice depends on the generator alone."""
    candidates = sorted((rollout for rollout in external if informative(rollout)), key=lambda rollout: rollout.id)
    picked = chooser.sample(candidates, min(external_count, len(candidates)))
    return Batch(own=tuple(filter(informative, own)), external=tuple(picked))
