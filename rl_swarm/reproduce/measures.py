"""From the rounds of one cell to figures. Pure.

The measure that counts is reward over *own* rollouts. The paper's table may have counted external ones too, which were chosen for
being informative: that measure rises without any learning. It stands beside ours under the name `mixed`, and is never
tested. Cumulative reward is the sum over rounds of the mean over nodes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS
from rl_swarm.reproduce.results import CellResult, NodeRound

TRAINED_COST = 3  # a token that is trained on costs a forward and a backward pass, about three of writing one
COLLAPSED = 0.5  # share of its peak that a run may lose before it counts as collapsed


@dataclass(frozen=True)
class Curves:
    """A cell round by round: means over its nodes, the band of their smoothed rewards, and costs of all nodes so far."""

    own: tuple[float, ...]
    smoothed: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    mixed: tuple[float, ...]
    generated: tuple[int, ...]
    compute: tuple[float, ...]


@dataclass(frozen=True)
class Measures:
    """What one cell came to. Tokens and seconds are of the whole swarm; external figures are means per node and round."""

    cumulative: float
    final: float
    cumulative_mixed: float
    held_out: float | None
    held_out_style_blind: float | None
    oscillation: float
    collapse: float
    collapsed: bool
    own_used: float
    external_wanted: float
    external_used: float
    external_age: float | None
    origins: float
    tokens_generated: int
    tokens_trained: int
    seconds: float


def curves(result: CellResult) -> Curves:
    by_round = _by_round(result.rows)
    nodes = sorted({row.node for row in result.rows})
    own = [fmean(row.reward for row in rows) for rows in by_round]
    each = [smooth([row.reward for rows in by_round for row in rows if row.node == node]) for node in nodes]
    return Curves(
        own=tuple(own),
        smoothed=tuple(smooth(own)),
        low=tuple(map(min, zip(*each, strict=False))),
        high=tuple(map(max, zip(*each, strict=False))),
        mixed=tuple(fmean(row.mixed for row in rows) for rows in by_round),
        generated=tuple(_running(by_round, lambda row: row.tokens)),
        compute=tuple(_running(by_round, lambda row: row.tokens + TRAINED_COST * row.tokens_trained)),
    )


def measure(result: CellResult) -> Measures:
    found, rows = curves(result), result.rows
    ages = [(row.external_age, row.external_used) for row in rows if row.external_age is not None and row.external_used]
    last = [row for row in rows if row.held_out is not None]
    last = [row for row in last if row.round == max(each.round for each in last)]
    return Measures(
        cumulative=sum(found.own),
        final=fmean(ending(found.own)),
        cumulative_mixed=sum(found.mixed),
        held_out=fmean(row.held_out or 0.0 for row in last) if last else None,
        held_out_style_blind=fmean(row.held_out_style_blind or 0.0 for row in last) if last else None,
        oscillation=oscillation(found.smoothed),
        collapse=collapse(found.smoothed),
        collapsed=collapse(found.smoothed) > COLLAPSED,
        own_used=fmean(row.own_used for row in rows),
        external_wanted=fmean(row.external_wanted for row in rows),
        external_used=fmean(row.external_used for row in rows),
        external_age=sum(age * used for age, used in ages) / sum(used for _, used in ages) if ages else None,
        origins=_origins(rows),
        tokens_generated=sum(row.tokens for row in rows),
        tokens_trained=sum(row.tokens_trained for row in rows),
        seconds=result.seconds,
    )


def smooth(values: Sequence[float], count: int = SMOOTHED_ROUNDS) -> list[float]:
    """Each value as the mean of itself and those before it, `count` in all."""
    return [fmean(values[max(0, place + 1 - count) : place + 1]) for place in range(len(values))]


def ending(values: Sequence[float]) -> Sequence[float]:
    """The last tenth, and at least five rounds of it: how a run stood at the end."""
    return values[-max(5, len(values) // 10) :]


def oscillation(smoothed: Sequence[float]) -> float:
    """How much the smoothed reward fell in all, on its way, as a share of its highest value: 0 for a curve that only rises."""
    falls = sum(max(0.0, before - after) for before, after in pairwise(smoothed))
    return falls / max(smoothed) if max(smoothed) > 0 else 0.0


def collapse(smoothed: Sequence[float]) -> float:
    """The share of its highest smoothed reward that a run has lost at the end."""
    return 1 - smoothed[-1] / max(smoothed) if max(smoothed) > 0 else 0.0


def rounds_to(smoothed: Sequence[float], threshold: float) -> int | None:
    """Rounds until the smoothed reward has reached the threshold; None if it never did."""
    return next((place + 1 for place, value in enumerate(smoothed) if value >= threshold), None)


def rounds_for(costs: Sequence[float], budget: float) -> int:
    """Rounds that a running cost pays for, and at least one."""
    return max(1, sum(cost <= budget for cost in costs))


def _by_round(rows: Sequence[NodeRound]) -> list[list[NodeRound]]:
    found: dict[int, list[NodeRound]] = {}
    for row in rows:
        found.setdefault(row.round, []).append(row)
    return [found[number] for number in sorted(found)]


def _running(by_round: Sequence[Sequence[NodeRound]], cost: Callable[[NodeRound], int]) -> list[int]:
    totals, total = [], 0
    for rows in by_round:
        total += sum(map(cost, rows))
        totals.append(total)
    return totals


def _origins(rows: Sequence[NodeRound]) -> float:
    """From how many authors a node's external rollouts come, as if each gave the same: 1 / Σ share², mean over nodes."""
    taken: dict[str, Counter[str]] = {}
    for row in rows:
        taken.setdefault(row.node, Counter()).update(row.authors)
    effective = []
    for authors in taken.values():
        total = sum(authors.values())
        if total:
            effective.append(1 / sum((count / total) ** 2 for count in authors.values()))
    return fmean(effective) if effective else 0.0
