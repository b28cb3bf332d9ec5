"""What a run has come to, as plain data: read from the run alone, for the card, the picture and the page.

Every figure can be computed again from the published files. Nothing here draws, prints or writes, and nothing of the run is
changed. Only registered workers count; ids that name nobody else of them are not credited to anyone.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from rl_swarm import progress
from rl_swarm.errors import NotFound
from rl_swarm.experiments.following import EVENTS, METRICS, Count, Measured, Share, data_of, mean_curve, valid
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import read_registration, registered

FIRST_ROUNDS = 3
LAST_ROUNDS = 10


class Evaluated(msgspec.Struct, frozen=True):
    """What a node measured on the held-out questions before a round: shares of right answers."""

    round: Count
    held_out: Share
    held_out_style_blind: Share
    held_out_questions: Count = 0


@dataclass(frozen=True)
class Change:
    """A figure before and after training; None where the run has not measured it."""

    before: float | None = None
    after: float | None = None

    @property
    def times(self) -> float | None:
        return self.after / self.before if self.before and self.after is not None else None


@dataclass(frozen=True)
class NodeSummary:
    """`gave` counts how often peers trained on this node's rollouts, `got` how often it trained on theirs."""

    node_id: str
    model: str
    rounds: int
    reward: Change
    held_out: Change
    style_blind: Change
    gave: int
    got: int
    own_used: int
    tokens: int


@dataclass(frozen=True)
class Summary:
    experiment: str
    settings: Mapping[str, str]
    versions: Mapping[str, str]
    nodes: tuple[NodeSummary, ...]
    rounds: int
    seconds: float
    first_rounds: tuple[int, ...]  # those that `reward.before` is the mean of
    last_rounds: tuple[int, ...]
    reward: Change
    held_out: Change
    style_blind: Change
    held_out_questions: int
    evaluations: tuple[Evaluated, ...]  # means over the nodes that were measured first and last
    rewards: Mapping[str, tuple[tuple[int, float], ...]]  # of each node, round by round
    mean_rewards: tuple[tuple[int, float], ...]
    uses: Mapping[tuple[str, str], int]  # (learner, author): how often the one trained on the other's rollouts


def summarise(store: Store, layout: Layout) -> Summary:
    """Read a whole run; raise StoreAway if the store does not answer, BadDocument if experiment.json is damaged."""
    workers = _workers(store, layout)
    rows = {node: _measured(store, layout, node) for node in workers}
    evaluated = {node: _evaluated(store, layout, node) for node in workers}
    uses = count_uses(rows)
    numbers = sorted({number for each in rows.values() for number in each})
    first, last = ends_of(numbers)
    experiment = experiments.read(store, layout)
    moments = [row.timestamp for each in rows.values() for row in each.values()]
    began = experiment.created_at if experiment else min(moments, default=0.0)
    evaluations = mean_evaluations(list(evaluated.values()))
    return Summary(
        experiment=layout.experiment_name,
        settings=dict(experiment.settings) if experiment else {},
        versions=_versions(store, layout, workers) | ({"tasks": experiment.tasks_version} if experiment else {}),
        nodes=tuple(_node(node, workers[node], rows[node], evaluated[node], uses) for node in workers),
        rounds=len(numbers),
        seconds=max(0.0, max(moments, default=began) - began),
        first_rounds=first,
        last_rounds=last,
        reward=Change(_mean_reward(rows.values(), first), _mean_reward(rows.values(), last)),
        held_out=_ends_of_evaluation(evaluations, "held_out"),
        style_blind=_ends_of_evaluation(evaluations, "held_out_style_blind"),
        held_out_questions=max((each.held_out_questions for each in evaluations), default=0),
        evaluations=evaluations,
        rewards={node: tuple((number, each[number].reward) for number in sorted(each)) for node, each in rows.items()},
        mean_rewards=mean_curve(list(rows.values())),
        uses=uses,
    )


def ends_of(numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first rounds and the last ones, which never overlap: a short run has fewer of each."""
    first = tuple(numbers[: min(FIRST_ROUNDS, len(numbers) // 2)])
    rest = numbers[len(first) :]
    return first, tuple(rest[-LAST_ROUNDS:]) if first else ()


def count_uses(rows: Mapping[str, Mapping[int, Measured]]) -> dict[tuple[str, str], int]:
    """How often each node trained on the rollouts of each other, from the ids recorded with every update."""
    counted: Counter[tuple[str, str]] = Counter()
    for learner, each in rows.items():
        authors = (name.partition("/")[0] for row in each.values() for name in row.external_ids)
        counted.update((learner, author) for author in authors if author in rows and author != learner)
    return dict(counted)


def _workers(store: Store, layout: Layout) -> dict[str, str]:
    """Registered workers and the model that each says it trains."""
    found = {node: read_registration(store, layout, node) for node in sorted(registered(store, layout))}
    return {node: each.model for node, each in found.items() if each and each.node_role == "worker"}


def _measured(store: Store, layout: Layout, node_id: str) -> dict[int, Measured]:
    rows = progress.rows(progress.lines(store, layout.log(node_id, METRICS)))
    return {row.round: row for row in valid(rows, Measured)}


def _evaluated(store: Store, layout: Layout, node_id: str) -> list[Evaluated]:
    """One evaluation a round, in order; a round done again counts once."""
    events = progress.rows(progress.lines(store, layout.log(node_id, EVENTS)))
    found = {each.round: each for each in valid(data_of(events, "evaluation"), Evaluated)}
    return [found[number] for number in sorted(found)]


def _node(
    node_id: str, model: str, rows: Mapping[int, Measured], evaluated: Sequence[Evaluated], uses: Mapping[tuple[str, str], int]
) -> NodeSummary:
    first, last = ends_of(sorted(rows))
    return NodeSummary(
        node_id=node_id,
        model=model,
        rounds=len(rows),
        reward=Change(_mean_reward([rows], first), _mean_reward([rows], last)),
        held_out=_ends_of_evaluation(evaluated, "held_out"),
        style_blind=_ends_of_evaluation(evaluated, "held_out_style_blind"),
        gave=sum(count for (_, author), count in uses.items() if author == node_id),
        got=sum(count for (learner, _), count in uses.items() if learner == node_id),
        own_used=sum(row.own_used for row in rows.values()),
        tokens=sum(row.tokens for row in rows.values()),
    )


def _mean_reward(nodes: Iterable[Mapping[int, Measured]], numbers: Sequence[int]) -> float | None:
    rewards = [rows[number].reward for rows in nodes for number in numbers if number in rows]
    return fmean(rewards) if rewards else None


def _ends_of_evaluation(evaluated: Sequence[Evaluated], name: str) -> Change:
    """Before round 0, and last; a node that was never measured before training has nothing to be compared with."""
    if len(evaluated) < 2 or evaluated[0].round != 0:
        return Change()
    return Change(getattr(evaluated[0], name), getattr(evaluated[-1], name))


def mean_evaluations(nodes: Sequence[Sequence[Evaluated]]) -> tuple[Evaluated, ...]:
    """Means over the nodes that were measured before training and at the last time of all: at each end the same nodes."""
    last = max((each.round for evaluated in nodes for each in evaluated), default=0)
    by_round: dict[int, list[Evaluated]] = {}
    for evaluated in nodes:
        if {0, last} <= {each.round for each in evaluated}:
            for each in evaluated:
                by_round.setdefault(each.round, []).append(each)
    return tuple(
        Evaluated(
            number,
            fmean(one.held_out for one in by_round[number]),
            fmean(one.held_out_style_blind for one in by_round[number]),
            max(one.held_out_questions for one in by_round[number]),
        )
        for number in sorted(by_round)
    )


def _versions(store: Store, layout: Layout, nodes: Iterable[str]) -> dict[str, str]:
    """Of the package and of Python, as the nodes have written them down; several where they differ."""
    found: dict[str, set[str]] = {}
    for node_id in nodes:
        try:
            info = json.loads(store.get(layout.log(node_id, "system_info.json")))
        except (NotFound, ValueError):
            continue
        for name in ("rl_swarm", "python"):
            if isinstance(info, dict) and name in info:
                found.setdefault(name, set()).add(str(info[name]))
    return {name: ", ".join(sorted(each)) for name, each in found.items()}
