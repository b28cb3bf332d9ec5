"""Choose J of the peers' rollouts by one of three rules (EXTERNAL_CHOICE).

    informative   uniformly among the informative ones: the paper's rule, and the default
    uniform       uniformly among all, which wastes places on rollouts without a gradient; for comparison
    matched       by difficulty: about half of the completions right, where a comparison says most

The rules see rewards that were scored here, never a peer's claim, and not who wrote a rollout.
"""

import random
from collections.abc import Sequence
from statistics import fmean

from rl_swarm.rollout import Rollout


def eligible(rollout: Rollout, choice: str) -> bool:
    """Whether the rule would ever take this rollout."""
    return choice == "uniform" or rollout.informative


def mismatch(rollout: Rollout) -> float:
    """The distance from being half right. Peers learn at about the same pace, so what is hard for them is hard here."""
    return abs(fmean(rollout.rewards) - 0.5)


def pick(pool: Sequence[Rollout], count: int, chooser: random.Random, choice: str = "informative") -> list[Rollout]:
    """Sort the candidates first, so that the choice depends on the generator alone."""
    candidates = sorted((rollout for rollout in pool if eligible(rollout, choice)), key=lambda rollout: rollout.id)
    if choice == "matched":
        chooser.shuffle(candidates)  # among equals, chance decides
        return sorted(candidates, key=mismatch)[:count]
    return chooser.sample(candidates, min(count, len(candidates)))
