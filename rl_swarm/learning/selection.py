"""Choose the rollouts of one update: all informative own ones, and J external ones by one of three rules.

A rollout is informative if its rewards differ by at least a tolerance. Only then does comparing its completions teach
anything; crumbs of partial credit below the tolerance do not count. The rules see rewards that were scored here, never a peer's
claim, and nothing of who wrote a rollout.

    informative   uniformly among the informative ones: the paper's rule, and the default
    uniform       uniformly among all, which wastes places on what teaches nothing; for comparison
    matched       those whose difficulty fits: about half of the completions right, where a comparison says most
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rl_swarm.rollout import Rollout

TOLERANCE = 0.05
CHOICES = ("informative", "uniform", "matched")


@dataclass(frozen=True)
class Batch:
    own: tuple[Rollout, ...]
    external: tuple[Rollout, ...]

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        return self.own + self.external


def informative(rollout: Rollout) -> bool:
    return max(rollout.rewards) - min(rollout.rewards) >= TOLERANCE


def eligible(rollout: Rollout, choice: str) -> bool:
    """Whether the rule would ever take this rollout."""
    return choice == "uniform" or informative(rollout)


def mismatch(rollout: Rollout) -> float:
    """How far a rollout is from being half right; peers are at about the same stage, so what is hard for them is hard here."""
    return abs(fmean(rollout.rewards) - 0.5)


def choose(
    own: Sequence[Rollout],
    external: Sequence[Rollout],
    external_count: int,
    chooser: random.Random,
    choice: str = "informative",
) -> Batch:
    """Own rollouts are kept in order. External ones are put in order first, so that the choice depends on the generator alone."""
    candidates = sorted((rollout for rollout in external if eligible(rollout, choice)), key=lambda rollout: rollout.id)
    if choice == "matched":
        chooser.shuffle(candidates)  # among equals, chance decides
        picked = sorted(candidates, key=mismatch)[:external_count]
    else:
        picked = chooser.sample(candidates, min(external_count, len(candidates)))
    return Batch(own=tuple(filter(informative, own)), external=tuple(picked))
