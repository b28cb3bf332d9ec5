"""Follow a run while it goes on: each look reads what is new and nothing twice, so that several looks a second cost little.

It changes nothing in the run, and believes nothing: a row that no node of ours would write is left out, and so is a bundle that
cannot be read. Of two rows of one round the last counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec

from rl_swarm.errors import BadDocument, NotFound
from rl_swarm.rollout import BUNDLE_BYTES, Rollout, decode
from rl_swarm.runs import progress
from rl_swarm.runs.record import Round, valid
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, node_of_file
from rl_swarm.swarm.peers import most_alive, read_registration

METRICS, EVENTS = "metrics.jsonl", "training_events.jsonl"
SMOOTHED_ROUNDS = 5
REMEMBERED_BYTES = 256
PACE_ROUNDS = 10
GOOD = 0.5  # a completion that was paid at least this much is shown as a good one


class Doing(msgspec.Struct, frozen=True):
    """The data of an event of type `state`."""

    doing: str
    round: int


def data_of(events: Iterable[Mapping[str, Any]], event_type: str) -> list[Any]:
    return [event.get("data") for event in events if event.get("event_type") == event_type]


class Tail:
    """One journal, read on from where the last look ended."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self._offset = 0
        self._before = b""  # the end of what was read: another text there means that the journal was rewritten
        self._segments: set[str] = set()

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """The rows since the last look, and whether they take the place of all earlier ones, since the journal was rewritten."""
        there = progress.segment_keys(self.store, self.key)
        if there or self._segments:
            return self._new_segments(there)
        return self._grown()

    def _grown(self) -> tuple[bool, list[dict[str, Any]]]:
        start = self._offset - len(self._before)
        data = self._get(self.key, start)
        anew = not data.startswith(self._before)
        if anew:
            self._offset, self._before = 0, b""
            data = self._get(self.key, 0)
        new = data[len(self._before) :]
        whole = new[: new.rfind(b"\n") + 1]  # the rest of the last line is still being written
        self._offset += len(whole)
        self._before = (self._before + whole)[-REMEMBERED_BYTES:]
        return anew, progress.rows(whole.decode("utf-8", "replace").splitlines())

    def _new_segments(self, there: list[str]) -> tuple[bool, list[dict[str, Any]]]:
        before, self._segments = self._segments, set(there)
        if not before or not before <= self._segments:
            return True, progress.rows(progress.lines(self.store, self.key))
        return False, progress.rows(progress.segment_lines(self.store, [key for key in there if key not in before]))

    def _get(self, key: str, offset: int) -> bytes:
        try:
            return self.store.get(key, limit=progress.JOURNAL_BYTES, offset=offset)
        except NotFound:
            return b""


def published(store: Store, layout: Layout, number: int, node_id: str) -> list[Rollout]:
    """What a node has published in a round, as far as it can be read now."""
    folder = layout.rollouts_of(number)
    found: list[Rollout] = []
    for name in store.list(folder):
        if node_of_file(name) == node_id:
            try:
                found += decode(store.get(f"{folder}/{name}", limit=BUNDLE_BYTES)).rollouts
            except (NotFound, BadDocument):
                continue
    return found


@dataclass(frozen=True)
class Sample:
    """One completion with its question; the reward is what its node says."""

    node_id: str
    round: int
    prompt: str
    text: str
    reward: float


def pick(rollouts: Sequence[Rollout]) -> tuple[Sample | None, Sample | None]:
    """A good and a wrong completion, of one question where there are such, since that is what a node learns from."""
    good: Sample | None = None
    wrong: Sample | None = None
    for rollout in rollouts:
        ranked = sorted(rollout.completions, key=lambda done: done.reward)
        if not ranked:
            continue
        lowest, highest = (
            Sample(rollout.node_id, rollout.round, rollout.question.prompt, done.text, done.reward)
            for done in (ranked[0], ranked[-1])
        )
        if highest.reward >= GOOD > lowest.reward:
            return highest, lowest
        good = good or (highest if highest.reward >= GOOD else None)
        wrong = wrong or (lowest if lowest.reward < GOOD else None)
    return good, wrong


@dataclass(frozen=True)
class NodeMoment:
    node_id: str
    role: str
    doing: str
    since: float | None
    last: Round | None
    reward: float | None  # mean of the last SMOOTHED_ROUNDS rounds


@dataclass(frozen=True)
class Moment:
    """A run as it is now. `curve` is the mean own reward over the nodes, round by round; `pace` is seconds a round."""

    experiment: str
    max_rounds: int
    rounds_done: int
    pace: float | None
    last_round_at: float | None
    nodes: tuple[NodeMoment, ...]
    curve: tuple[tuple[int, float], ...]
    good: Sample | None
    wrong: Sample | None

    @property
    def complete(self) -> bool:
        workers = [node for node in self.nodes if node.role == "worker"]
        return bool(workers) and all(node.doing == "complete" for node in workers)

    def seconds_left(self, now: float) -> float | None:
        """By the pace of the last rounds; None while there is none to go by."""
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
        """Take in what is new; return the new rows of metrics."""
        anew, found = self.metrics.look()
        new = valid(found, Round)
        if anew:
            self.rows.clear()
        self.rows.update({row.round: row for row in new})
        _, events = self.events.look()
        for event in events:
            for state in valid(data_of([event], "state"), Doing):
                since = event.get("timestamp")
                self.doing, self.since = state.doing, since if isinstance(since, float) else None
        return new

    def moment(self) -> NodeMoment:
        recent = [self.rows[number] for number in sorted(self.rows)[-SMOOTHED_ROUNDS:]]
        reward = fmean(row.reward for row in recent) if recent else None
        return NodeMoment(self.node_id, self.role, self.doing, self.since, recent[-1] if recent else None, reward)


class Following:
    """One run, looked at again and again."""

    def __init__(self, store: Store, layout: Layout, max_rounds: int) -> None:
        self.store = store
        self.layout = layout
        self.max_rounds = max_rounds
        self._nodes: dict[str, _Followed] = {}
        self._good: Sample | None = None
        self._wrong: Sample | None = None

    def look(self) -> Moment:
        """Read what is new; raise StoreAway if the store does not answer."""
        for node_id in set(most_alive(self.store, self.layout)[0]) - self._nodes.keys():
            self._meet(node_id)
        new = [(row.timestamp, row.round, node.node_id) for node in self._nodes.values() for row in node.read()]
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
            curve=mean_curve([node.rows for node in self._nodes.values()]),
            good=self._good,
            wrong=self._wrong,
        )

    def _meet(self, node_id: str) -> None:
        registration = read_registration(self.store, self.layout, node_id)
        if registration:
            metrics, events = (Tail(self.store, self.layout.log(node_id, name)) for name in (METRICS, EVENTS))
            self._nodes[node_id] = _Followed(node_id, registration.node_role, metrics, events)

    def _sample(self, number: int, node_id: str) -> None:
        """Show completions of the newest round; where there is none of a sort, the one before stays."""
        rollouts = published(self.store, self.layout, number, node_id)
        turn = number % len(rollouts) if rollouts else 0  # so that it is not always the first question
        good, wrong = pick([*rollouts[turn:], *rollouts[:turn]])
        self._good, self._wrong = good or self._good, wrong or self._wrong


def mean_curve(nodes: Sequence[Mapping[int, Round]]) -> tuple[tuple[int, float], ...]:
    """The mean own reward over the nodes, round by round; the newest round only when as many have done it as the one before."""
    rewards: dict[int, list[float]] = {}
    for rows in nodes:
        for number, row in rows.items():
            rewards.setdefault(number, []).append(row.reward)
    numbers = sorted(rewards)
    if len(numbers) > 1 and len(rewards[numbers[-1]]) < len(rewards[numbers[-2]]):
        del numbers[-1]
    return tuple((number, fmean(rewards[number])) for number in numbers)


def _ends(nodes: Iterable[Mapping[int, Round]]) -> dict[int, float]:
    """When the first node had done each round."""
    ends: dict[int, float] = {}
    for rows in nodes:
        for number, row in rows.items():
            ends[number] = min(row.timestamp, ends.get(number, row.timestamp))
    return ends


def _pace(ends: Mapping[int, float]) -> float | None:
    """Seconds a round: the median of the last rounds, which a night's pause does not spoil."""
    numbers = sorted(ends)[-PACE_ROUNDS - 1 :]
    steps = [(ends[after] - ends[before]) / (after - before) for before, after in pairwise(numbers)]
    return max(0.0, median(steps)) if steps else None
