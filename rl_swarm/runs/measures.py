"""The figures of one round: pure functions from rollouts to numbers.

`reward` is the mean over own completions only: mixing in chosen ones of peers would raise it without any learning.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

from rl_swarm.clock import Clock
from rl_swarm.rollout import Completion, Rollout


def rewards_of(rollouts: Iterable[Rollout]) -> list[float]:
    return [reward for rollout in rollouts for reward in rollout.rewards]


def own_figures(own: Sequence[Rollout]) -> dict[str, Any]:
    """What the node's own completions were like, informative or not; lengths are in tokens."""
    completions = [done for rollout in own for done in rollout.completions]
    lengths = [done.tokens for done in completions]
    rewards = rewards_of(own)
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "reward_by_task": _reward_by_task(own),
        "tokens": sum(lengths),
        "length_min": min(lengths),
        "length_mean": fmean(lengths),
        "length_max": max(lengths),
        "truncated": fmean(map(_truncated, completions)),
    }


def batch_figures(own: Sequence[Rollout], external: Sequence[Rollout], number: int) -> dict[str, Any]:
    """What the update was made of, with the ids, so that anyone can recompute who learnt from whom."""
    own_ids = [rollout.id for rollout in own if rollout.informative]
    return {
        "own_used": len(own_ids),
        "own_ids": own_ids,
        "external_used": len(external),
        "external_ids": [rollout.id for rollout in external],
        "external_age": _mean(number - rollout.round for rollout in external),
        "external_reward": _mean(rewards_of(external)),
    }


def _truncated(done: Completion) -> bool:
    return done.finish == "length"


def _mean(values: Iterable[float]) -> float | None:
    collected = list(values)
    return fmean(collected) if collected else None


def _reward_by_task(own: Sequence[Rollout]) -> dict[str, float]:
    by_task: dict[str, list[float]] = {}
    for rollout in own:
        by_task.setdefault(rollout.question.task or "", []).extend(rollout.rewards)
    return {task: fmean(values) for task, values in sorted(by_task.items())}


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
