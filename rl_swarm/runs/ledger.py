"""The figures of a whole run in bounded memory: rows of journals are folded into means over stretches of rounds.

A stretch is one round at first, and twice as long whenever there would be more than MOST_STRETCHES of them. So a view costs the
same however long the run is. Of a round that a node plays again, the last row counts.

Rows are the nodes' own word. A node can spoil its own figures; limits keep it from spoiling those of others.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean

import msgspec

from rl_swarm.config import MOST_ROUNDS
from rl_swarm.runs.record import Evaluated, Event, Round, decoded
from rl_swarm.text import one_line

MOST_STRETCHES = 400
MOST_AUTHORS = 256  # of the rollouts that one node trained on
MOST_REASONS = 32  # of rejections
MOST_EVALUATIONS = 400  # of one node
MOST_NOTES = 32  # of one node: the newest
OPEN_ROUNDS = 2048  # whose winners may still change
MOST_USES = 100_000  # rollouts whose learners are known: the newest
PHASES = ("generate", "score", "store", "train")
PLAIN = (
    "reward",
    "reward_std",
    "external_reward",
    "external_age",
    "own_used",
    "own_wanted",
    "external_used",
    "external_wanted",
    "informative",
    "answered",
    "truncated",
    "length_mean",
    "entropy",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "tokens_per_s",
    "external_weighed",
    "external_discounted",
)
FIGURES = (*PLAIN, "uninformative", *(f"seconds_{phase}" for phase in PHASES), "seconds_other")
_plain = attrgetter(*PLAIN)
PLACES = {name: place for place, name in enumerate(FIGURES)}


class _Note(msgspec.Struct, frozen=True):
    message: str
    round: int = -1


@dataclass(frozen=True)
class Note:
    """A line that a node has printed together with an event."""

    at: float
    node_id: str
    kind: str
    line: str


@dataclass(frozen=True)
class Stretch:
    """The rounds from `first` on: mean, lowest and highest value of a figure, over `count` rows."""

    first: int
    count: int
    mean: float
    low: float
    high: float


@dataclass
class NodeLedger:
    """The figures of one node. A stretch is kept as sums and counts of all figures, and the ends of the reward."""

    stretches: dict[int, "array[float]"] = field(default_factory=dict)
    rounds: int = 0
    reward_total: float = 0.0
    tokens: int = 0
    own_used: int = 0
    authors: Counter[str] = field(default_factory=Counter)  # whose rollouts it trained on, and how often
    rejected: Mapping[str, int] = field(default_factory=dict)
    evaluations: dict[int, Evaluated] = field(default_factory=dict)
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))

    @property
    def got(self) -> int:
        return self.authors.total()


class Ledger:
    """The figures of all nodes of one run. `believable` is the round from which on rows are ignored."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeLedger] = {}
        self.width = 1  # rounds in a stretch
        self.believable = MOST_ROUNDS
        self.newest = -1
        self._open: dict[int, dict[str, float]] = {}  # rewards of rounds whose winners may change
        self._won: Counter[str] = Counter()
        self._uses: dict[str, tuple[tuple[str, int], ...]] = {}  # rollout → who trained on it, and in which round

    def forget_rounds(self, node_id: str) -> None:
        """Begin again with a node whose journal was rewritten."""
        before = self.nodes.get(node_id)
        if before:
            self.forget(node_id)
            self.nodes[node_id] = NodeLedger(evaluations=before.evaluations, notes=before.notes)

    def forget(self, node_id: str) -> None:
        """Drop a node that is no longer followed. Its journal is read from the beginning if it comes back."""
        self.nodes.pop(node_id, None)
        for rewards in self._open.values():
            rewards.pop(node_id, None)

    def add(self, node_id: str, row: Round, former: Round | None = None) -> None:
        """Count a row; it replaces the `former` one of the same round."""
        if row.round >= self.believable:
            return
        node = self._node(node_id)
        if former:
            self._count(node, former, -1)
        self._count(node, row, 1)
        node.rejected = dict(list(row.rejected_total.items())[:MOST_REASONS])
        self.newest = max(self.newest, row.round)
        self._open.setdefault(row.round, {})[node_id] = row.reward
        while len(self._open) > OPEN_ROUNDS:
            self._won.update(_shares(self._open.pop(min(self._open))))
        for rollout_id in row.external_ids:
            use = (node_id, row.round)
            learners = self._uses.pop(rollout_id, ())
            self._uses[rollout_id] = learners if use in learners else (*learners, use)[-MOST_AUTHORS:]
        while len(self._uses) > MOST_USES:
            del self._uses[next(iter(self._uses))]

    def _node(self, node_id: str) -> NodeLedger:
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = NodeLedger()
        return node

    def _count(self, node: NodeLedger, row: Round, sign: int) -> None:
        node.rounds += sign
        node.reward_total += sign * row.reward
        node.tokens += sign * row.tokens
        node.own_used += sign * row.own_used
        for author in (name.partition("/")[0] for name in row.external_ids):
            if author in node.authors or len(node.authors) < MOST_AUTHORS:
                node.authors[author] += sign
        while row.round >= self.width * MOST_STRETCHES:
            self._widen()
        size = len(FIGURES)
        sums = node.stretches.get(row.round // self.width)
        if sums is None:
            sums = node.stretches[row.round // self.width] = array("d", [0.0] * (2 * size) + [row.reward] * 2)
        for place, value in enumerate(figures_of(row)):
            if value is not None:
                sums[place] += sign * value
                sums[size + place] += sign
        sums[-2], sums[-1] = min(sums[-2], row.reward), max(sums[-1], row.reward)

    def _widen(self) -> None:
        """Make stretches twice as long."""
        self.width *= 2
        for node in self.nodes.values():
            merged: dict[int, array[float]] = {}
            for place, sums in node.stretches.items():
                there = merged.get(place // 2)
                if there is None:
                    merged[place // 2] = sums
                    continue
                low, high = min(there[-2], sums[-2]), max(there[-1], sums[-1])
                merged[place // 2] = array("d", [one + other for one, other in zip(there, sums, strict=True)])
                merged[place // 2][-2:] = array("d", [low, high])
            node.stretches = merged

    def add_events(self, node_id: str, lines: Iterable[str], anew: bool) -> None:
        """Keep evaluations, and the lines that were printed with events. With `anew` they replace all earlier ones."""
        node = self._node(node_id)
        if anew:
            node.evaluations.clear()
            node.notes.clear()
        for event in decoded((line for line in lines if '"state"' not in line[:120]), Event):
            if event.event_type == "evaluation":
                node.evaluations.update({each.round: each for each in decoded([event.data], Evaluated)})
            elif isinstance(event.event_type, str):
                for note in decoded([event.data], _Note):
                    node.notes.append(Note(event.timestamp, node_id, one_line(event.event_type), one_line(note.message, most=600)))
        while len(node.evaluations) > MOST_EVALUATIONS:
            rounds = sorted(node.evaluations)
            node.evaluations = {number: node.evaluations[number] for number in (*rounds[:-1:2], rounds[-1])}

    def stretches(self, node_id: str, figure: str) -> list[Stretch]:
        """A figure of a node, in the order of the rounds; without stretches in which it was not measured."""
        node, place, size = self.nodes.get(node_id), PLACES[figure], len(FIGURES)
        found = []
        for stretch, sums in sorted(node.stretches.items()) if node else ():
            count = round(sums[size + place])
            if count > 0:
                mean = sums[place] / count
                low, high = (sums[-2], sums[-1]) if figure == "reward" else (mean, mean)
                found.append(Stretch(stretch * self.width, count, mean, low, high))
        return found

    def table(self, names: Iterable[str], figures: Sequence[str]) -> dict[int, list[float | None]]:
        """The figures of each stretch, by its first round: means over these nodes, None where none has measured one."""
        places, size = [PLACES[figure] for figure in figures], len(FIGURES)
        sums: dict[int, list[list[float]]] = {}
        for node in (self.nodes[name] for name in names if name in self.nodes):
            for stretch, kept in node.stretches.items():
                found = sums.setdefault(stretch * self.width, [[] for _ in places])
                for column, place in zip(found, places, strict=True):
                    if kept[size + place] > 0.5:
                        column.append(kept[place] / kept[size + place])
        return {first: [fmean(column) if column else None for column in sums[first]] for first in sorted(sums)}

    def rounds_won(self) -> Counter[str]:
        """How often each node had the highest own reward of a round; nodes with the same reward share it."""
        won = Counter(self._won)
        for rewards in self._open.values():
            won.update(_shares(rewards))
        return won

    def learners_of(self, rollout_id: str) -> tuple[tuple[str, int], ...]:
        """The nodes that trained on a rollout, and in which round, as far as that is still known."""
        return self._uses.get(rollout_id, ())

    def uses(self, known: Iterable[str]) -> dict[tuple[str, str], int]:
        """(learner, author) among these nodes: how often the one trained on the other's rollouts."""
        there = set(known)
        return {
            (learner, author): count
            for learner, node in self.nodes.items()
            if learner in there
            for author, count in node.authors.items()
            if author in there and author != learner and count > 0
        }


def figures_of(row: Round) -> tuple[float | None, ...]:
    """The values of FIGURES in a row; None where one was not measured."""
    uninformative = 1 - min(1.0, row.own_used / row.own_wanted) if row.own_wanted else None
    phases = [row.seconds.get(phase) for phase in PHASES]
    other = sum(row.seconds.values()) - sum(filter(None, phases)) if row.seconds else None
    return (*_plain(row), uninformative, *phases, other)


def _shares(rewards: Mapping[str, float]) -> "Counter[str]":
    """Who won a round, or shares it with others."""
    best = max(rewards.values(), default=0.0)
    winners = [node for node, reward in rewards.items() if reward == best]
    shares: Counter[str] = Counter()
    for node in winners:
        shares[node] = 1 / len(winners)  # type: ignore[assignment]
    return shares
