"""Summarise a run as plain data for the card, the picture and the page, from its published files alone.

Only registered workers count, and only they are credited with rollouts. Damaged files are left out and named, so that nobody takes
the rest for the whole. Nothing here draws, prints or writes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from rl_swarm.document import SMALL_BYTES, Label, unseal
from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.runs import progress
from rl_swarm.runs.following import mean_curve
from rl_swarm.runs.progress import EVENTS, METRICS, data_of
from rl_swarm.runs.record import Evaluated, Round, by_round, valid
from rl_swarm.store import Store
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import most_alive, read_registration

FIRST_ROUNDS = 3
LAST_ROUNDS = 10


@dataclass(frozen=True)
class Change:
    """A figure before and after training; None where it was not measured."""

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
    first_rounds: tuple[int, ...]  # `reward.before` is their mean
    last_rounds: tuple[int, ...]
    reward: Change
    held_out: Change
    style_blind: Change
    held_out_questions: int
    evaluations: tuple[Evaluated, ...]  # means over the nodes that were measured first and last
    rewards: Mapping[str, tuple[tuple[int, float], ...]]  # of each node, round by round
    mean_rewards: tuple[tuple[int, float], ...]
    uses: Mapping[tuple[str, str], int]  # (learner, author): how often the one trained on the other's rollouts
    damaged: tuple[str, ...] = ()  # files missing at least in part from these figures, and why


def summarise(store: Store, layout: Layout) -> Summary:
    """Read a whole run; raise StoreAway if the store does not answer."""
    files = _Files(store, layout)
    workers = files.workers()
    rows = {node: files.measured(node) for node in workers}
    evaluated = {node: files.evaluated(node) for node in workers}
    uses = count_uses(rows)
    numbers = sorted({number for each in rows.values() for number in each})
    first, last = ends_of(numbers)
    experiment = files.experiment()
    moments = [row.timestamp for each in rows.values() for row in each.values()]
    began = experiment.created_at if experiment else min(moments, default=0.0)
    evaluations = mean_evaluations(list(evaluated.values()))
    return Summary(
        experiment=layout.experiment_name,
        settings=dict(experiment.settings) if experiment else {},
        versions=files.versions(workers) | ({"tasks": experiment.tasks_version} if experiment else {}),
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
        rewards={node: tuple((number, row.reward) for number, row in each.items()) for node, each in rows.items()},
        mean_rewards=mean_curve(list(rows.values())),
        uses=uses,
        damaged=tuple(files.damaged),
    )


class _SystemInfo(msgspec.Struct, frozen=True):
    rl_swarm: Label = ""
    python: Label = ""


class _Files:
    """The files of one run. `damaged` names those that could not be used in full."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self.damaged: list[str] = []

    def experiment(self) -> Experiment | None:
        try:
            return unseal(self.store.get(self.layout.experiment, limit=SMALL_BYTES), Experiment)
        except NotFound:
            return None
        except BadDocument as error:
            self._damaged(self.layout.experiment, error)
            return None

    def workers(self) -> dict[str, str]:
        """Registered workers and the model that each says it trains."""
        names, left_out = most_alive(self.store, self.layout)
        if left_out:
            self._damaged(self.layout.peers, f"{left_out} registrations with fewer signs of life were not looked at")
        found = {node: read_registration(self.store, self.layout, node) for node in names}
        for node in (node for node, registration in found.items() if registration is None):
            self._damaged(self.layout.peer(node), "no readable registration, so the node is left out")
        return {node: each.model for node, each in found.items() if each and each.node_role == "worker"}

    def measured(self, node_id: str) -> dict[int, Round]:
        lines = self._lines(node_id, METRICS)
        rows = valid(progress.rows(lines), Round)
        self._expect(self.layout.log(node_id, METRICS), len(lines), len(rows))
        return by_round(rows)

    def evaluated(self, node_id: str) -> list[Evaluated]:
        """One evaluation a round, in order; a round done again counts once."""
        lines = self._lines(node_id, EVENTS)
        events = progress.rows(lines)
        said = data_of(events, "evaluation")
        rows = valid(said, Evaluated)
        self._expect(self.layout.log(node_id, EVENTS), len(lines), len(events) - len(said) + len(rows))
        found = {each.round: each for each in rows}
        return [found[number] for number in sorted(found)]

    def versions(self, nodes: Iterable[str]) -> dict[str, str]:
        """Versions of the package and of Python that the nodes recorded; several where they differ."""
        infos = [self._system_info(node_id) for node_id in nodes]
        found = {name: {getattr(info, name) for info in infos} - {""} for name in ("rl_swarm", "python")}
        return {name: ", ".join(sorted(each)) for name, each in found.items() if each}

    def _system_info(self, node_id: str) -> _SystemInfo:
        key = self.layout.system_info(node_id)
        try:
            return msgspec.json.decode(self.store.get(key, limit=SMALL_BYTES), type=_SystemInfo)
        except NotFound:
            pass
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last for brackets nested thousands deep
            self._damaged(key, error)
        return _SystemInfo()

    def _lines(self, node_id: str, name: str) -> list[str]:
        return [line for line in progress.lines(self.store, self.layout.log(node_id, name)) if line]

    def _expect(self, key: str, lines: int, usable: int) -> None:
        if usable < lines:
            self._damaged(key, f"{lines - usable} of {lines} lines are not what a node writes")

    def _damaged(self, key: str, why: object) -> None:
        self.damaged.append(f"{key}: {why}")


def ends_of(numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first rounds and the last ones. They never overlap: a short run has fewer of each."""
    first = tuple(numbers[: min(FIRST_ROUNDS, len(numbers) // 2)])
    return first, tuple(numbers[len(first) :][-LAST_ROUNDS:]) if first else ()


def count_uses(rows: Mapping[str, Mapping[int, Round]]) -> dict[tuple[str, str], int]:
    """How often each node trained on the rollouts of each other, from the ids recorded with every update."""
    counted: Counter[tuple[str, str]] = Counter()
    for learner, each in rows.items():
        authors = (name.partition("/")[0] for row in each.values() for name in row.external_ids)
        counted.update((learner, author) for author in authors if author in rows and author != learner)
    return dict(counted)


def _node(
    node_id: str, model: str, rows: Mapping[int, Round], evaluated: Sequence[Evaluated], uses: Mapping[tuple[str, str], int]
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


def _mean_reward(nodes: Iterable[Mapping[int, Round]], numbers: Sequence[int]) -> float | None:
    rewards = [rows[number].reward for rows in nodes for number in numbers if number in rows]
    return fmean(rewards) if rewards else None


def _ends_of_evaluation(evaluated: Sequence[Evaluated], name: str) -> Change:
    """The evaluation before round 0, and the last one; without the former there is nothing to compare with."""
    if len(evaluated) < 2 or evaluated[0].round != 0:
        return Change()
    return Change(getattr(evaluated[0], name), getattr(evaluated[-1], name))


def mean_evaluations(nodes: Sequence[Sequence[Evaluated]]) -> tuple[Evaluated, ...]:
    """Means over the nodes that have both the first and the last evaluation, so that both ends are of the same nodes."""
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
