"""Follow a run while it goes on. Each look reads only what is new, so several looks a second cost little.

Changes nothing and trusts nothing: rows that no node writes and bundles that cannot be read are skipped. Of several rows of one
round the last counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rl_swarm.runs import progress
from rl_swarm.runs.examples import Answered, pick_pair, published
from rl_swarm.runs.progress import EVENTS, METRICS
from rl_swarm.runs.record import Round, State, valid
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import most_alive, read_registration

MEAN_ROUNDS = 5  # rewards are shown as means of so many rounds
REMEMBERED_BYTES = 256
PACE_ROUNDS = 10


class Tail:
    """One journal, read from where the last look ended."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self._offset = 0
        self._before = b""  # the end of what was read: if it has changed, the journal was rewritten
        self._segments: set[str] = set()

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return the rows since the last look, and whether they replace all earlier ones because the journal was rewritten."""
        there = progress.segment_keys(self.store, self.key)
        anew, lines = self._new_segments(there) if there or self._segments else self._grown()
        return anew, progress.rows(lines)

    def _grown(self) -> tuple[bool, list[str]]:
        data = progress.read(self.store, self.key, progress.JOURNAL_BYTES, self._offset - len(self._before))
        anew = not data.startswith(self._before)
        if anew:
            self._offset, self._before = 0, b""
            data = progress.read(self.store, self.key, progress.JOURNAL_BYTES)
        new = data[len(self._before) :]
        whole = new[: new.rfind(b"\n") + 1]  # the last line may still be being written
        self._offset += len(whole)
        self._before = (self._before + whole)[-REMEMBERED_BYTES:]
        return anew, progress.text_lines(whole)

    def _new_segments(self, there: list[str]) -> tuple[bool, list[str]]:
        before, self._segments = self._segments, set(there)
        if not before or not before <= self._segments:
            return True, progress.lines(self.store, self.key)
        return False, progress.segment_lines(self.store, [key for key in there if key not in before])


@dataclass(frozen=True)
class NodeMoment:
    node_id: str
    role: str
    doing: str
    since: float | None
    last: Round | None
    reward: float | None  # mean of the last MEAN_ROUNDS rounds


@dataclass(frozen=True)
class Moment:
    """A run as it is now. `curve` is the mean own reward of the nodes, round by round; `pace` is seconds per round."""

    experiment: str
    max_rounds: int
    rounds_done: int
    pace: float | None
    last_round_at: float | None
    nodes: tuple[NodeMoment, ...]
    curve: tuple[tuple[int, float], ...]
    good: Answered | None
    other: Answered | None  # with less than the full reward

    @property
    def complete(self) -> bool:
        workers = [node for node in self.nodes if node.role == "worker"]
        return bool(workers) and all(node.doing == "complete" for node in workers)

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the pace of the last rounds; None if there is no pace yet."""
        if self.complete:
            return 0.0
        if self.pace is None or self.last_round_at is None:
            return None
        since_last = min(max(0.0, now - self.last_round_at), self.pace)
        return max(0.0, self.pace * (self.max_rounds - self.rounds_done) - since_last)


@dataclass
class _Followed:
    node_id: str
    role: str
    metrics: Tail
    events: Tail
    rows: dict[int, Round] = field(default_factory=dict)
    doing: str = "registered"
    since: float | None = None

    def read(self) -> list[Round]:
        """Read what is new; return the new rows of metrics."""
        anew, found = self.metrics.look()
        new = valid(found, Round)
        if anew:
            self.rows.clear()
        self.rows.update({row.round: row for row in new})
        for state in valid(self.events.look()[1], State):
            self.doing, self.since = state.data.doing, state.timestamp
        return new

    def moment(self) -> NodeMoment:
        recent = [self.rows[number] for number in sorted(self.rows)[-MEAN_ROUNDS:]]
        reward = fmean(row.reward for row in recent) if recent else None
        return NodeMoment(self.node_id, self.role, self.doing, self.since, recent[-1] if recent else None, reward)


class Following:
    """One run, looked at repeatedly."""

    def __init__(self, store: Store, layout: Layout, max_rounds: int) -> None:
        self.store = store
        self.layout = layout
        self.max_rounds = max_rounds
        self._nodes: dict[str, _Followed] = {}
        self._good: Answered | None = None
        self._other: Answered | None = None

    def look(self) -> Moment:
        """Read what is new; raise StoreAway if the store does not answer."""
        for node_id in set(most_alive(self.store, self.layout)[0]) - self._nodes.keys():
            self._meet(node_id)
        new = [(row.timestamp, row.round, row.stage, node.node_id) for node in self._nodes.values() for row in node.read()]
        if new:
            self._sample(*max(new)[1:])
        ends = _ends(node.rows for node in self._nodes.values())
        return Moment(
            experiment=self.layout.experiment_name,
            max_rounds=self.max_rounds,
            rounds_done=max(ends, default=-1) + 1,
            pace=_pace(ends),
            last_round_at=ends[max(ends)] if ends else None,
            nodes=tuple(self._nodes[node_id].moment() for node_id in sorted(self._nodes)),
            curve=mean_curve([{number: row.reward for number, row in node.rows.items()} for node in self._nodes.values()]),
            good=self._good,
            other=self._other,
        )

    def _meet(self, node_id: str) -> None:
        registration = read_registration(self.store, self.layout, node_id)
        if registration:
            metrics, events = (Tail(self.store, self.layout.log(node_id, name)) for name in (METRICS, EVENTS))
            self._nodes[node_id] = _Followed(node_id, registration.node_role, metrics, events)

    def _sample(self, number: int, stage: int, node_id: str) -> None:
        """Show completions of the newest round; keep one of before if there is no new one."""
        rollouts = published(self.store, self.layout, number, stage, node_id)
        turn = number % len(rollouts) if rollouts else 0  # show different questions in turn
        good, other = pick_pair([*rollouts[turn:], *rollouts[:turn]])
        self._good, self._other = good or self._good, other or self._other


def mean_curve(nodes: Sequence[Mapping[int, float]]) -> tuple[tuple[int, float], ...]:
    """Average the nodes' own rewards round by round; the newest round once as many nodes have done it as the one before."""
    rewards: dict[int, list[float]] = {}
    for each in nodes:
        for number, reward in each.items():
            rewards.setdefault(number, []).append(reward)
    numbers = sorted(rewards)
    if len(numbers) > 1 and len(rewards[numbers[-1]]) < len(rewards[numbers[-2]]):
        del numbers[-1]
    return tuple((number, fmean(rewards[number])) for number in numbers)


def _ends(nodes: Iterable[Mapping[int, Round]]) -> dict[int, float]:
    """Return when the first node finished each round."""
    ends: dict[int, float] = {}
    for rows in nodes:
        for number, row in rows.items():
            ends[number] = min(row.timestamp, ends.get(number, row.timestamp))
    return ends


def _pace(ends: Mapping[int, float]) -> float | None:
    """Return seconds per round: the median of the last rounds, which one long pause does not distort."""
    numbers = sorted(ends)[-PACE_ROUNDS - 1 :]
    steps = [(ends[after] - ends[before]) / (after - before) for before, after in pairwise(numbers)]
    return max(0.0, median(steps)) if steps else None
