"""Read a run: its journals, and what every node is doing. For people and programs; it changes nothing.

The one reader of journals, whether they grew in place or came as segments. A line is counted once however often it is stored, and
of several metric rows for one round the last counts (a node that was killed does a round again).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_swarm.errors import NotFound
from rl_swarm.runs.record import Round, by_round, valid
from rl_swarm.store import Store, is_key
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import EXPERIMENTS, Layout, sequence_of_file
from rl_swarm.swarm.peers import most_alive, newest_heartbeat, read_heartbeat, read_registration
from rl_swarm.swarm.rounds import Rounds, names_at_work
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.swarm.standing import MOST_TOLD, Mute
from rl_swarm.text import one_line

TAIL_BYTES = 64 << 10
JOURNAL_BYTES = 64 << 20  # of one journal, and of all its segments together; what lies beyond is not read
SEGMENT_BYTES = 4 << 10  # what a segment counts for at least, so that there are no more than 16,384
MOST_TAILS = 256  # segments that are looked at for the newest row


def segment_keys(store: Store, key: str) -> list[str]:
    """The segments of a journal in the order in which they were written."""
    folder = Layout.segments(key)
    names = {name for name in store.list(folder) if sequence_of_file(name) is not None}
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: sequence_of_file(name) or 0)]


def segment_lines(store: Store, keys: Sequence[str], most_bytes: int | None = None) -> list[str]:
    """The lines of these segments in order. Of very many, or very long ones, the newest: anybody may have put them there."""
    left, found = most_bytes or JOURNAL_BYTES, list[list[str]]()
    for key in reversed(keys):
        if left < SEGMENT_BYTES:
            break
        data = _read(store, key, left)
        left -= max(len(data), SEGMENT_BYTES)
        found.append(_text_of(data))
    return [line for part in reversed(found) for line in part]


def lines(store: Store, key: str, most_bytes: int | None = None) -> list[str]:
    """Every line of a journal, once, in order; a line that was written twice is there twice. With `most_bytes` the newest lines.

    The documented file may be a copy of the segments, may have been appended to after they were merged, or may have grown in place
    before the folder was used through a mount.
    """
    in_file = _newest_lines(store, key, most_bytes) if most_bytes else _text_of(_read(store, key, JOURNAL_BYTES))
    in_segments = segment_lines(store, segment_keys(store, key), most_bytes)
    return in_file + in_segments[_shared(in_file, in_segments) :]


def _newest_lines(store: Store, key: str, most_bytes: int) -> list[str]:
    tail = _read(store, key, most_bytes, offset=-most_bytes)
    return _text_of(tail)[len(tail) >= most_bytes :]  # the first line may be half a line


def _text_of(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


def _shared(text: Sequence[str], part: Sequence[str]) -> int:
    """How many lines `part` begins with that `text` ends with; all of them if they stand anywhere in it.

    The search of Knuth, Morris and Pratt: its time is linear, whatever the lines are.
    """
    if not part:
        return 0
    shorter = [0] * len(part)  # how much of `part` still matches where the next line does not
    matched = 0
    for place in range(1, len(part)):
        while matched and part[place] != part[matched]:
            matched = shorter[matched - 1]
        matched += part[place] == part[matched]
        shorter[place] = matched
    matched = 0
    for line in text:
        while matched and line != part[matched]:
            matched = shorter[matched - 1]
        matched += line == part[matched]
        if matched == len(part):
            break
    return matched


def _read(store: Store, key: str, limit: int, offset: int = 0) -> bytes:
    try:
        return store.get(key, limit=limit, offset=offset)[:limit]
    except NotFound:
        return b""


def rows(journal_lines: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON objects among the lines; the last line of a killed node may be half a line and is left out."""
    found = []
    for line in journal_lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the latter for brackets within brackets, thousands deep
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def last_rows(store: Store, key: str) -> list[dict[str, Any]]:
    """The newest rows of a journal, without reading all of it."""
    for part in [*segment_keys(store, key)[: -MOST_TAILS - 1 : -1], key]:
        found = rows(_newest_lines(store, part, TAIL_BYTES))
        if found:
            return found
    return []


def records(store: Store, layout: Layout, node_id: str) -> list[Round]:
    """What a node has recorded, a round after the other."""
    return list(by_round(valid(rows(lines(store, layout.log(node_id, "metrics.jsonl"))), Round)).values())


def events(store: Store, layout: Layout, node_id: str) -> list[dict[str, Any]]:
    return rows(lines(store, layout.log(node_id, "training_events.jsonl")))


@dataclass(frozen=True)
class NodeStatus:
    node_id: str
    role: str
    model: str
    doing: str
    since: float | None
    round: int | None
    reward: float | None
    last_sign: float | None
    muted: tuple[Mute, ...] = ()
    name_in_use: bool = False  # the node says that another process uses its name, too


@dataclass(frozen=True)
class ExperimentStatus:
    experiment: str
    status: str
    round: int | None
    opened_at: float | None
    nodes: tuple[NodeStatus, ...]
    left_out: int = 0  # registered nodes that were not looked at

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def experiment_status(store: Store, layout: Layout, founder: str | None = None) -> ExperimentStatus:
    """What the experiment and each of its nodes is doing. Times are those of the node that wrote them.

    Where the experiment is signed, only signed rounds and nodes are believed; raise ConfigError if it is not `founder`'s.
    """
    signatures = experiments.reader(store, layout, founder)
    rounds = Rounds(store, layout, signatures=signatures)
    newest = rounds.survey()
    current = rounds.read_current()
    names, left_out = most_alive(store, layout, names_at_work(store, layout, newest))
    nodes = tuple(node_status(store, layout, node_id, signatures) for node_id in names)
    highest = max((node.round for node in nodes if node.round is not None), default=None)
    return ExperimentStatus(
        experiment=layout.experiment_name,
        status=one_line(current.status) if current else ("running" if nodes else "empty"),
        round=newest.round if newest else highest,
        opened_at=newest.opened_at if newest else None,
        nodes=nodes,
        left_out=left_out,
    )


def all_experiments(store: Store) -> list[ExperimentStatus]:
    """The status of every experiment in a store; folders that are none are left out."""
    names = [name.rstrip("/") for name in store.list(EXPERIMENTS) if name.endswith("/") and is_key(name)]
    found = [experiment_status(store, Layout(name)) for name in names]
    return [status for status in found if status.status != "empty"]


def node_status(store: Store, layout: Layout, node_id: str, signatures: Signatures | None = None) -> NodeStatus:
    registration = read_registration(store, layout, node_id, signatures)
    recent = last_rows(store, layout.log(node_id, "training_events.jsonl"))
    state: dict[str, Any] = next((row for row in reversed(recent) if row.get("event_type") == "state"), {})
    measured = valid(last_rows(store, layout.log(node_id, "metrics.jsonl")), Round)
    last = measured[-1] if measured else None
    signs = [number(row.get("timestamp")) for row in (state, recent[-1] if recent else {})]
    signs.append(last.timestamp if last else None)
    signs.append(registration.registered_at if registration else None)
    sequence = newest_heartbeat(store, layout, node_id, signatures)
    beat = read_heartbeat(store, layout, node_id, sequence, signatures) if sequence is not None else None
    data = state.get("data")
    said: dict[str, Any] = data if isinstance(data, dict) else {}
    doing, since, round_number = _text(said.get("doing")), number(state.get("timestamp")), number(said.get("round"))
    if beat and beat.sent_at > (since or 0):
        signs.append(beat.sent_at)
        if (said_last := one_line(beat.doing)) != doing:
            doing, since, round_number = said_last, beat.sent_at, beat.round
    return NodeStatus(
        node_id=node_id,
        role=one_line(registration.node_role) if registration else "unknown",
        model=one_line(registration.model) if registration else "",
        doing=doing or "registered",
        since=since,
        round=None if round_number is None or round_number < 0 else int(round_number),
        reward=last.reward if last else None,
        last_sign=max((sign for sign in signs if sign is not None), default=None),
        muted=_shown(last.muted) if last else (),
        name_in_use=beat is not None and bool(beat.twin),
    )


def _shown(muted: Sequence[Mute]) -> tuple[Mute, ...]:
    return tuple(Mute(one_line(each.peer), one_line(each.reason), each.until) for each in muted[:MOST_TOLD])


def number(value: Any) -> float | None:
    """A journal is a peer's file, too: what is no finite number is as if it were not there."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return value if usable else None


def _text(value: Any) -> str | None:
    return one_line(value) if isinstance(value, str) else None
