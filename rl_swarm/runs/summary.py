"""Summarise a run as plain data for the card, the picture and the page, from its published files alone.

Only registered workers count, and only they are credited with rollouts. Damaged files are left out and named, so that nobody takes
the rest for the whole. Of a journal only figures are kept, and of very long ones the newest rows are read: a report stays quick and
small. Nothing here draws, prints or writes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import msgspec

from rl_swarm.config import load
from rl_swarm.document import SMALL_BYTES, Label, unseal
from rl_swarm.errors import BadDocument, ConfigError, NotFound
from rl_swarm.runs import progress
from rl_swarm.runs.following import mean_curve
from rl_swarm.runs.progress import EVENTS, JOURNAL_BYTES, METRICS
from rl_swarm.runs.record import Evaluated, Event, Round, decoded
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Registration, most_alive, read_registration
from rl_swarm.swarm.removals import removed_before
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.text import counted

FIRST_ROUNDS = 3
LAST_ROUNDS = 10
MOST_ROWS_OF_ALL = 200_000  # rows of a journal, of all workers together: the newest
JOURNAL_BYTES_OF_ALL = 1 << 30


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
    in_form: Change
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
    max_rounds: int | None  # as the settings say
    seconds: float
    last_round_at: float | None
    first_rounds: tuple[int, ...]  # `reward.before` is their mean
    last_rounds: tuple[int, ...]
    reward: Change
    held_out: Change
    style_blind: Change
    in_form: Change
    held_out_questions: int
    evaluations: tuple[Evaluated, ...]  # means over the nodes that were measured first and last
    rewards: Mapping[str, tuple[tuple[int, float], ...]]  # of each node, round by round
    mean_rewards: tuple[tuple[int, float], ...]
    uses: Mapping[tuple[str, str], int]  # (learner, author): how often the one trained on the other's rollouts
    damaged: tuple[str, ...] = ()  # files missing at least in part from these figures, and why
    removed_before: int = 0  # rollouts of rounds before this one may have been removed or archived on purpose

    @property
    def model(self) -> str:
        return ", ".join(sorted({node.model for node in self.nodes})) or "no model"


def summarise(store: Store, layout: Layout, founder: str | None = None) -> Summary:
    """Read a whole run; raise StoreAway if the store does not answer, and ConfigError if the run is not `founder`'s."""
    files = _Files(store, layout, founder)
    workers = files.workers
    played = {node: files.played(node) for node in workers}
    evaluated = {node: files.evaluated(node) for node in workers}
    uses = {(node, author): count for node, each in played.items() for author, count in each.authors.items()}
    rewards = [each.rewards for each in played.values()]
    numbers = sorted({number for each in rewards for number in each})
    first, last = ends_of(numbers)
    experiment = files.experiment()
    ends = [each.last_at for each in played.values() if each.rewards]
    begins = [experiment.created_at] if experiment else [each.first_at for each in played.values() if each.rewards]
    evaluations = mean_evaluations(list(evaluated.values()))
    return Summary(
        experiment=layout.experiment_name,
        settings=dict(experiment.settings) if experiment else {},
        versions=files.versions(workers) | ({"tasks": experiment.tasks_version} if experiment else {}),
        nodes=tuple(_node(node, workers[node], played[node], evaluated[node], uses) for node in workers),
        rounds=len(numbers),
        max_rounds=files.max_rounds(experiment),
        seconds=max(0.0, max(ends) - min(begins)) if ends else 0.0,
        last_round_at=max(ends, default=None),
        first_rounds=first,
        last_rounds=last,
        reward=Change(_mean_reward(rewards, first), _mean_reward(rewards, last)),
        held_out=_ends_of_evaluation(evaluations, "held_out"),
        style_blind=_ends_of_evaluation(evaluations, "held_out_style_blind"),
        in_form=_ends_of_evaluation(evaluations, "held_out_in_form"),
        held_out_questions=max((each.held_out_questions for each in evaluations), default=0),
        evaluations=evaluations,
        rewards={node: tuple(each.rewards.items()) for node, each in played.items()},
        mean_rewards=mean_curve(rewards),
        uses=uses,
        damaged=tuple(files.damaged),
        removed_before=files.removed_before,
    )


class _SystemInfo(msgspec.Struct, frozen=True):
    rl_swarm: Label = ""
    python: Label = ""


@dataclass
class _Played:
    """The figures of a worker's rounds; the rows themselves are not kept."""

    rewards: dict[int, float] = field(default_factory=dict)  # in the order of the rounds
    authors: Counter[str] = field(default_factory=Counter)  # whose rollouts it trained on, and how often
    own_used: int = 0
    tokens: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


class _Files:
    """The files of one run. `damaged` names those that could not be used in full."""

    def __init__(self, store: Store, layout: Layout, founder: str | None) -> None:
        self.store = store
        self.layout = layout
        self.damaged: list[str] = []
        _, signatures = experiments.reader(store, layout, founder)
        nodes = self._registered(signatures)
        self.workers = {node: each.model for node, each in nodes.items() if each.node_role == "worker"}
        self.removed_before = max(removed_before(store, layout, list(nodes), signatures).values(), default=0)
        self._most_rows = MOST_ROWS_OF_ALL // max(1, len(self.workers))
        self._most_bytes = min(JOURNAL_BYTES, JOURNAL_BYTES_OF_ALL // max(1, len(self.workers)))

    def experiment(self) -> Experiment | None:
        try:
            return unseal(self.store.get(self.layout.experiment, limit=SMALL_BYTES), Experiment)
        except NotFound:
            return None
        except BadDocument as error:
            self._damaged(self.layout.experiment, error)
            return None

    def max_rounds(self, experiment: Experiment | None) -> int | None:
        try:
            return load({}, shared=experiment.settings).max_rounds if experiment else None
        except ConfigError as error:
            self._damaged(self.layout.experiment, error)
            return None

    def _registered(self, signatures: Signatures) -> dict[str, Registration]:
        names, left_out = most_alive(self.store, self.layout)
        if left_out:
            self._damaged(self.layout.peers, f"not looked at: {counted(left_out, 'registration')} with fewer signs of life")
        found = {node: read_registration(self.store, self.layout, node, signatures) for node in names}
        for node in (node for node, registration in found.items() if registration is None):
            self._damaged(self.layout.peer(node), "no readable registration, so the node is left out")
        return {node: each for node, each in found.items() if each}

    def played(self, node_id: str) -> _Played:
        """Of a round that was done again the last row counts."""
        found, usable, moments = _Played(), 0, list[float]()
        lines = self._lines(node_id, METRICS)
        for row in decoded(reversed(lines), Round):
            usable += 1
            if row.round in found.rewards:
                continue
            found.rewards[row.round] = row.reward
            moments.append(row.timestamp)
            found.own_used += row.own_used
            found.tokens += row.tokens
            authors = (name.partition("/")[0] for name in row.external_ids)
            found.authors.update(author for author in authors if author in self.workers and author != node_id)
        self._expect(self.layout.log(node_id, METRICS), len(lines), usable)
        found.rewards = dict(sorted(found.rewards.items()))
        found.first_at, found.last_at = min(moments, default=0.0), max(moments, default=0.0)
        return found

    def evaluated(self, node_id: str) -> list[Evaluated]:
        """One evaluation a round, in order; a round done again counts once."""
        lines, found, usable = self._lines(node_id, EVENTS), dict[int, Evaluated](), 0
        for event in decoded(lines, Event):
            data = list(decoded([event.data], Evaluated)) if event.event_type == "evaluation" else []
            usable += event.event_type != "evaluation" or len(data)
            found.update({each.round: each for each in data})
        self._expect(self.layout.log(node_id, EVENTS), len(lines), usable)
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
        key = self.layout.log(node_id, name)
        lines = [line for line in progress.lines(self.store, key, self._most_bytes) if line]
        if len(lines) > self._most_rows:
            self._damaged(key, f"{len(lines)} lines, of which the newest {self._most_rows} were looked at")
        return lines[-self._most_rows :]

    def _expect(self, key: str, lines: int, usable: int) -> None:
        if usable < lines:
            self._damaged(key, f"not what a node writes: {lines - usable} of {counted(lines, 'line')}")

    def _damaged(self, key: str, why: object) -> None:
        self.damaged.append(f"{key}: {why}")


def ends_of(numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first rounds and the last ones. They never overlap: a short run has fewer of each."""
    first = tuple(numbers[: min(FIRST_ROUNDS, len(numbers) // 2)])
    return first, tuple(numbers[len(first) :][-LAST_ROUNDS:]) if first else ()


def _node(
    node_id: str, model: str, played: _Played, evaluated: Sequence[Evaluated], uses: Mapping[tuple[str, str], int]
) -> NodeSummary:
    first, last = ends_of(list(played.rewards))
    return NodeSummary(
        node_id=node_id,
        model=model,
        rounds=len(played.rewards),
        reward=Change(_mean_reward([played.rewards], first), _mean_reward([played.rewards], last)),
        held_out=_ends_of_evaluation(evaluated, "held_out"),
        style_blind=_ends_of_evaluation(evaluated, "held_out_style_blind"),
        in_form=_ends_of_evaluation(evaluated, "held_out_in_form"),
        gave=sum(count for (_, author), count in uses.items() if author == node_id),
        got=played.authors.total(),
        own_used=played.own_used,
        tokens=played.tokens,
    )


def _mean_reward(nodes: Iterable[Mapping[int, float]], numbers: Sequence[int]) -> float | None:
    rewards = [rewards[number] for rewards in nodes for number in numbers if number in rewards]
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
            fmean(one.held_out_in_form for one in by_round[number]),
            max(one.held_out_questions for one in by_round[number]),
        )
        for number in sorted(by_round)
    )
