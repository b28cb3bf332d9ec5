"""Read what a run and each of its nodes is doing: one look, or many while it goes on, each of which reads only what is new.

Changes nothing and trusts nothing: rows that no node writes and bundles that cannot be read are skipped. In a signed experiment
only signed rounds, registrations and heartbeats count. Of several rows of one round the last counts. Times are on the clock of the
node that wrote them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec

from rl_swarm.config import Config, load
from rl_swarm.runs import progress
from rl_swarm.runs.examples import Answered, pick_pair, published
from rl_swarm.runs.ledger import Ledger
from rl_swarm.runs.progress import EVENTS, METRICS, TAIL_BYTES
from rl_swarm.runs.record import Round, State, decoded
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import Heartbeat, Registration, has_left, most_alive, newest_heartbeat, read_registration, silent_since
from rl_swarm.swarm.rounds import Rounds, names_at_work
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.swarm.standing import MOST_TOLD, Mute
from rl_swarm.text import one_line

MEAN_ROUNDS = 5  # rewards are shown as means of so many rounds
PACE_ROUNDS = 10
REMEMBERED_BYTES = 256
HISTORY_BYTES = 64 << 20  # read of all journals together at the first look; at least their ends
PAGE_BYTES = 1 << 20  # of a journal that a look reads into a ledger
KEPT_ROWS = 64  # newest rows of a node that are kept beside a ledger: more than a restart plays again
OFTEN_SECONDS, RARELY_SECONDS = 0.2, 2.0  # between two looks at registrations, announced rounds and heartbeats


class Place(msgspec.Struct, frozen=True):
    """How far a journal was read."""

    offset: int
    before: str
    segments: list[str]
    long: bool


class Tail:
    """One journal, read from where the last look ended. Of a file longer than `most_bytes` each look reads the end.

    With `paged`, each look reads at most `most_bytes` more of it instead, so that nothing is left out and little is held at once.
    """

    def __init__(self, store: Store, key: str, most_bytes: int, paged: bool = False) -> None:
        self.store = store
        self.key = key
        self.most_bytes = most_bytes
        self.paged = paged
        self._offset = 0
        self._before = b""  # the end of what was read: if it has changed, the journal was rewritten
        self._long = most_bytes <= TAIL_BYTES and not paged
        self._segments: set[str] = set()
        self.behind = False  # a page was full, so there is more to read

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return the rows since the last look, and whether they replace all earlier ones because the journal was rewritten."""
        anew, lines = self.lines()
        return anew, progress.rows(lines)

    def lines(self) -> tuple[bool, list[str]]:
        """Return the lines since the last look, JSON or not, and whether they replace all earlier ones."""
        there = progress.segment_keys(self.store, self.key)
        return self._new_segments(there) if there or self._segments else self._grown()

    def place(self) -> Place:
        """Where the last look ended, for a later process."""
        return Place(self._offset, self._before.hex(), sorted(self._segments), self._long)

    def go_on_at(self, place: Place) -> None:
        self._offset, self._before = place.offset, bytes.fromhex(place.before)
        self._segments, self._long = set(place.segments), place.long

    def _grown(self) -> tuple[bool, list[str]]:
        if self._long:
            return False, progress.newest_lines(self.store, self.key, TAIL_BYTES)
        data = progress.read(self.store, self.key, self.most_bytes, self._offset - len(self._before))
        anew = not data.startswith(self._before)
        if anew:
            self._offset, self._before = 0, b""
            data = progress.read(self.store, self.key, self.most_bytes)
        full = len(data) >= self.most_bytes
        if full and not self.paged:
            self._long = True
            return anew, progress.newest_lines(self.store, self.key, self.most_bytes)
        new = data[len(self._before) :]
        whole = new[: new.rfind(b"\n") + 1]  # the last line may still be being written
        if full and not whole:
            whole = new  # no node writes a line of this length: its end is no line either
        self.behind = full
        self._offset += len(whole)
        self._before = (self._before + whole)[-REMEMBERED_BYTES:]
        return anew, progress.text_lines(whole)

    def _new_segments(self, there: list[str]) -> tuple[bool, list[str]]:
        before, self._segments = self._segments, set(there)
        if not before or not before <= self._segments:
            return True, progress.lines(self.store, self.key, self.most_bytes)
        return False, progress.segment_lines(self.store, [key for key in there if key not in before], self.most_bytes)


@dataclass(frozen=True)
class NodeMoment:
    """One node as it is now, on its own word."""

    node_id: str
    role: str = "unknown"
    model: str = ""
    doing: str = "registered"
    since: float | None = None
    round: int | None = None  # the one it is at; of a stopped node, the one it will go on with
    last: Round | None = None
    reward: float | None = None  # mean of the last MEAN_ROUNDS rounds
    seconds: float | None = None  # a round of these rounds, without waiting
    pace: float | None = None  # seconds from the end of one round to the end of the next
    last_sign: float | None = None
    ends: tuple[float, ...] = ()  # of its last rounds
    interval: float = 60.0  # COORDINATOR_ROUND_INTERVAL: between two heartbeats passes half of it
    muted: tuple[Mute, ...] = ()
    name_in_use: bool = False  # the node has noticed another process with its name

    @property
    def ended(self) -> bool:
        return has_left(self.doing)

    def silent_seconds(self, now: float) -> float | None:
        """Return how long a node has given no sign of life, if that is long for this node."""
        if self.ended or self.last_sign is None:
            return None
        since = silent_since(self.ends, self.last_sign, now, self.interval)
        return None if since is None else now - since


@dataclass(frozen=True)
class Moment:
    """A run as it is now. `curve` is the mean own reward of the nodes, round by round; `pace` is seconds per round."""

    experiment: str
    status: str = "running"  # or empty, new, complete, stopped, failed
    max_rounds: int | None = None
    round: int | None = None  # announced, or else reached
    opened_at: float | None = None
    rounds_done: int = 0
    pace: float | None = None
    last_round_at: float | None = None
    nodes: tuple[NodeMoment, ...] = ()
    left_out: int = 0  # registrations that were not read, or are nobody's
    curve: tuple[tuple[int, float], ...] = ()
    good: Answered | None = None
    other: Answered | None = None  # with less than the full reward

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @property
    def workers(self) -> list[NodeMoment]:
        """The nodes that train: every count of a run's workers is theirs."""
        return [node for node in self.nodes if node.role == "worker"]

    def tokens_per_s(self, now: float) -> float:
        """Written by the nodes that are at work."""
        there = (node for node in self.nodes if not node.ended and node.silent_seconds(now) is None)
        return sum(node.last.tokens_per_s for node in there if node.last)

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the pace of the last rounds; None if there is no pace yet."""
        if self.complete:
            return 0.0
        if self.pace is None or self.last_round_at is None or self.max_rounds is None:
            return None
        since_last = min(max(0.0, now - self.last_round_at), self.pace)
        return max(0.0, self.pace * (self.max_rounds - self.rounds_done) - since_last)

    def as_dict(self, now: float) -> dict[str, Any]:
        """The document that `status --json` prints: all but the rewards and texts of single rounds."""
        said = {name: value for name, value in asdict(self).items() if name not in ("curve", "good", "other", "last_round_at")}
        said |= {"seconds_left": self.seconds_left(now), "tokens_per_s": self.tokens_per_s(now)}
        for document, node in zip(said["nodes"], self.nodes, strict=True):
            last, _, _ = (document.pop(name) for name in ("last", "ends", "interval"))
            document["reward_mean"], document["reward"] = node.reward, last.reward if last else None
            document["tokens_per_s"] = last.tokens_per_s if last else None
            document["silent_seconds"] = node.silent_seconds(now)
        return said


@dataclass
class _Followed:
    """One node between two looks. With a `ledger`, which keeps the figures of all rounds, only the newest rows stay here."""

    node_id: str
    metrics: Tail
    events: Tail
    ledger: Ledger | None = None
    registration: Registration | None = None
    beat: Heartbeat | None = None
    rows: dict[int, Round] = field(default_factory=dict)
    state: State | None = None

    def read(self) -> list[Round]:
        """Read what is new in the journals; return the new rows of metrics."""
        anew, lines = self.metrics.lines()
        if anew:
            self.rows.clear()
            if self.ledger:
                self.ledger.forget_rounds(self.node_id)
        new = []
        for row in decoded(lines, Round):
            former = self.rows.get(row.round)
            if former == row:
                continue
            new.append(row)
            self.rows[row.round] = row
            if self.ledger:
                self.ledger.add(self.node_id, row, former)
        if self.ledger and len(self.rows) > KEPT_ROWS:
            self.rows = {number: self.rows[number] for number in sorted(self.rows)[-KEPT_ROWS:]}
        anew, lines = self.events.lines()
        self.state = next(decoded(reversed(lines), State), self.state)
        if self.ledger:
            self.ledger.add_events(self.node_id, lines, anew)
        return new

    @property
    def known(self) -> bool:
        """Whether it is a node at all: anybody can make a file among the registrations."""
        return bool(self.registration or self.state or self.rows)

    def moment(self, interval: float) -> NodeMoment:
        recent = [self.rows[number] for number in sorted(self.rows)[-MEAN_ROUNDS:]]
        last = recent[-1] if recent else None
        ends = {number: row.timestamp for number, row in self.rows.items()}
        doing, since, number = "registered", None, -1
        if self.state:
            doing, since, number = self.state.data.doing, self.state.timestamp, self.state.data.round
        signs = [row.timestamp for row in (self.state, last) if row]
        signs += [self.registration.registered_at] if self.registration else []
        if self.beat and self.beat.sent_at > (since or 0):
            signs.append(self.beat.sent_at)
            if one_line(self.beat.doing) != one_line(doing):
                doing, since, number = self.beat.doing, self.beat.sent_at, self.beat.round
        return NodeMoment(
            node_id=self.node_id,
            role=one_line(self.registration.node_role) if self.registration else "unknown",
            model=one_line(self.registration.model) if self.registration else "",
            doing=one_line(doing),
            since=since,
            round=None if number < 0 else number,
            last=last,
            reward=fmean(row.reward for row in recent) if recent else None,
            seconds=fmean(sum(row.seconds.values()) for row in recent) if recent else None,
            pace=_pace(ends),
            last_sign=max(signs, default=None),
            ends=tuple(ends[each] for each in sorted(ends)[-PACE_ROUNDS - 1 :]),
            interval=interval,
            muted=tuple(Mute(one_line(each.peer), one_line(each.reason), each.until) for each in last.muted[:MOST_TOLD])
            if last
            else (),
            name_in_use=self.beat is not None and bool(self.beat.twin),
        )


class Following:
    """One run, looked at repeatedly; raises ConfigError if it is not `founder`'s.

    With `history_bytes` 0 even the first look reads only the ends of journals, so its cost does not grow with the run. With a
    `ledger`, journals are read whole, a page a look, into the ledger; a moment then has only the end of the curve.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        founder: str | None = None,
        history_bytes: int = HISTORY_BYTES,
        ledger: Ledger | None = None,
    ) -> None:
        self.store = store
        self.layout = layout
        self.founder = founder
        self.history_bytes = history_bytes
        self.ledger = ledger
        self._experiment: Experiment | None = None
        self._config: Config | None = None
        self._signatures = Signatures()
        self._rounds = Rounds(store, layout)
        self._said = ""  # by the coordinator, of the whole run
        self._nodes: dict[str, _Followed] = {}
        self._left_out = 0
        self._began: float | None = None
        self._next_look_around = 0.0
        self._good: Answered | None = None
        self._other: Answered | None = None

    def look(self) -> Moment:
        """Read what is new; raise StoreAway if the store does not answer."""
        now = self.store.clock.monotonic()
        if self._began is None or now >= self._next_look_around:
            self._began = now if self._began is None else self._began
            self._look_around()
            age = now - self._began
            self._next_look_around = now + min(RARELY_SECONDS, max(OFTEN_SECONDS, age / 4))  # often while nodes are starting
        if self.ledger and self._config:
            announced = self._rounds.newest.round + 1 if self._rounds.newest else 0
            self.ledger.believable = 2 * max(self._config.max_rounds, announced)  # some go on for longer
        new = [(row.timestamp, row.round, row.stage, node.node_id) for node in self._nodes.values() for row in node.read()]
        if new:
            self._sample(*max(new)[1:])
        known = [node for node in self._nodes.values() if node.known]
        interval = (self._config or Config()).round_interval
        nodes = tuple(node.moment(interval) for node in known)
        ends, newest = _ends(node.rows for node in known), self._rounds.newest
        return Moment(
            experiment=self.layout.experiment_name,
            status=self._status(nodes),
            max_rounds=self._config.max_rounds if self._config else None,
            round=newest.round if newest else max((node.round for node in nodes if node.round is not None), default=None),
            opened_at=newest.opened_at if newest else None,
            rounds_done=max(ends, default=-1) + 1,
            pace=_pace(ends),
            last_round_at=ends[max(ends)] if ends else None,
            nodes=nodes,
            left_out=self._left_out + len(self._nodes) - len(known),
            curve=mean_curve([{number: row.reward for number, row in node.rows.items()} for node in known]),
            good=self._good,
            other=self._other,
        )

    @property
    def behind(self) -> bool:
        """Whether a journal has more than the last look has read."""
        return any(node.metrics.behind or node.events.behind for node in self._nodes.values())

    @property
    def settings(self) -> Config | None:
        """The settings of the experiment, once they were read."""
        return self._config

    def _look_around(self) -> None:
        """Look who is there, which round is announced, and who has sent a heartbeat."""
        store, layout = self.store, self.layout
        if self._experiment is None:
            self._experiment, self._signatures = experiments.reader(store, layout, self.founder)
            self._rounds = Rounds(store, layout, signatures=self._signatures)
            self._config = load({}, {}, self._experiment.settings) if self._experiment else None
        newest = self._rounds.newest
        newest = self._rounds.advance(newest.round) or newest if newest else self._rounds.survey()
        current = self._rounds.read_current()
        self._said = one_line(current.status) if current else ""
        names, self._left_out = most_alive(store, layout)
        if self._left_out:
            names, self._left_out = most_alive(store, layout, names_at_work(store, layout, newest))
        most_bytes = max(TAIL_BYTES, self.history_bytes // max(1, len(names)))
        if self.ledger:
            for gone in self._nodes.keys() - set(names):
                self.ledger.forget(gone)
        self._nodes = {name: self._nodes.get(name) or self._meet(name, most_bytes) for name in names}
        for name, node in self._nodes.items():
            node.registration = node.registration or read_registration(store, layout, name, self._signatures)
            node.beat = newest_heartbeat(store, layout, name, self._signatures) or node.beat

    def _meet(self, node_id: str, most_bytes: int) -> _Followed:
        paged = self.ledger is not None
        most_bytes = PAGE_BYTES if paged else most_bytes
        metrics, events = (Tail(self.store, self.layout.log(node_id, name), most_bytes, paged) for name in (METRICS, EVENTS))
        return _Followed(node_id, metrics, events, self.ledger)

    def _status(self, nodes: Sequence[NodeMoment]) -> str:
        """Say how the whole run is: in the coordinator's word, unless nobody is there or all have ended."""
        if not nodes:
            return "new" if self._experiment else "empty"
        workers = [node for node in nodes if node.role == "worker"]
        if self._said == "complete" or (workers and all(node.doing == "complete" for node in workers)):
            return "complete"
        if all(node.ended for node in nodes):
            return "failed" if any(node.doing.startswith("failed") for node in nodes) else "stopped"
        return self._said or "running"

    def _sample(self, number: int, stage: int, node_id: str) -> None:
        """Show completions of the newest round; keep one of before if there is no new one."""
        rollouts = published(self.store, self.layout, number, stage, node_id)
        turn = number % len(rollouts) if rollouts else 0  # show different questions in turn
        good, other = pick_pair([*rollouts[turn:], *rollouts[:turn]])
        self._good, self._other = good or self._good, other or self._other


def look_once(store: Store, layout: Layout, founder: str | None = None) -> Moment:
    """Look at a run once, at the ends of its journals only."""
    return Following(store, layout, founder, history_bytes=0).look()


def all_experiments(store: Store) -> list[Moment]:
    """Look once at every experiment in a store; skip folders that hold none."""
    found = [look_once(store, Layout(name)) for name in experiments.names(store)]
    return [moment for moment in found if moment.status != "empty"]


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
