"""The figures of one round: pure functions from rollouts to numbers.

`reward` is the mean over own completions only: mixing in chosen ones of peers would raise it without any learning.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

from rl_swarm.clock import Clock
from rl_swarm.rollout import Rollout
from rl_swarm.tasks import parsed_answer

CONFIDENCE = 2.0  # standard deviations: nineteen times in twenty the true share lies within the interval


def interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share that was measured on so many questions; (0, 1) before the first."""
    if not count:
        return 0.0, 1.0
    square = CONFIDENCE**2
    middle = share + square / (2 * count)
    reach = CONFIDENCE * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, (middle - reach) / (1 + square / count)), min(1.0, (middle + reach) / (1 + square / count))


def rewards_of(rollouts: Iterable[Rollout]) -> list[float]:
    return [reward for rollout in rollouts for reward in rollout.rewards]


def own_figures(own: Sequence[Rollout]) -> dict[str, Any]:
    """Describe the node's own completions, informative or not; lengths are in tokens."""
    completions = [done for rollout in own for done in rollout.completions]
    lengths = [done.tokens for done in completions]
    rewards = rewards_of(own)
    by_task: dict[str, list[float]] = {}
    for rollout in own:
        by_task.setdefault(rollout.question.task or "", []).extend(rollout.rewards)
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "reward_by_task": {task: fmean(values) for task, values in sorted(by_task.items())},
        "tokens": sum(lengths),
        "length_min": min(lengths),
        "length_mean": fmean(lengths),
        "length_max": max(lengths),
        "truncated": fmean(done.finish == "length" for done in completions),
        "answered": fmean(parsed_answer(done.text) is not None for done in completions),
    }


def batch_figures(own: Sequence[Rollout], external: Sequence[Rollout], number: int) -> dict[str, Any]:
    """Describe what the update was made of, with the ids, so that anyone can recompute who learnt from whom."""
    own_ids = [rollout.id for rollout in own if rollout.informative]
    return {
        "own_used": len(own_ids),
        "own_ids": own_ids,
        "external_used": len(external),
        "external_ids": [rollout.id for rollout in external],
        "external_age": fmean(number - rollout.round for rollout in external) if external else None,
        "external_reward": fmean(rewards_of(external)) if external else None,
    }


class Stopwatch:
    """Seconds by kind of work."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self._last = clock.monotonic()

    def lap(self, kind: str) -> None:
        now = self.clock.monotonic()
        self.seconds[kind] = self.seconds.get(kind, 0.0) + now - self._last
        self._last = now

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count part of a lap under another kind."""
        self.seconds[source] -= seconds
        self.seconds[target] = self.seconds.get(target, 0.0) + seconds
