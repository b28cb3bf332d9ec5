"""Read a run: its journals, and what every node is doing. For people and programs; it changes nothing.

The one reader of journals, whether they grew in place or came as segments. A line is counted once however often it is stored, and
of several metric rows for one round the last counts (a node that was killed does a round again).
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from rl_swarm.errors import NotFound
from rl_swarm.store import Store, is_key
from rl_swarm.swarm.layout import EXPERIMENTS, Layout, sequence_of_file
from rl_swarm.swarm.peers import most_alive, newest_heartbeat, read_heartbeat, read_registration
from rl_swarm.swarm.rounds import Rounds, names_at_work
from rl_swarm.swarm.standing import MOST_TOLD, Mute

TAIL_BYTES = 64 << 10
JOURNAL_BYTES = 64 << 20  # of one journal or segment; what lies beyond is not read


def segment_keys(store: Store, key: str) -> list[str]:
    """The segments of a journal in the order in which they were written."""
    folder = Layout.segments(key)
    names = {name for name in store.list(folder) if sequence_of_file(name) is not None}
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: sequence_of_file(name) or 0)]


def newest_segment(store: Store, key: str, below: int) -> int:
    """The highest number under which a segment is there, of those below a limit; 0 if there is none."""
    numbers = (sequence_of_file(part.rpartition("/")[2]) or 0 for part in segment_keys(store, key))
    return max((number for number in numbers if number < below), default=0)


def segment_lines(store: Store, key: str) -> list[str]:
    return [line for part in segment_keys(store, key) for line in _lines(store, part)]


def lines(store: Store, key: str) -> list[str]:
    """Every line of a journal, once, in order; a line that was written twice is there twice.

    The documented file may be a copy of the segments, may have been appended to after they were merged, or may have grown in place
    before the folder was used through a mount.
    """
    in_file, in_segments = _lines(store, key), segment_lines(store, key)
    for start in range(len(in_file)):
        shared = min(len(in_file) - start, len(in_segments))
        if shared and in_file[start] != in_segments[0]:
            continue
        if in_file[start : start + shared] == in_segments[:shared]:
            return in_file + in_segments[shared:]
    return in_file + in_segments


def _lines(store: Store, key: str) -> list[str]:
    try:
        return store.get(key, limit=JOURNAL_BYTES).decode("utf-8", "replace").splitlines()
    except NotFound:
        return []


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
    for part in [*reversed(segment_keys(store, key)), key]:
        try:
            tail = store.get(part, limit=TAIL_BYTES, offset=-TAIL_BYTES)
        except NotFound:
            continue
        found = rows(tail.decode("utf-8", "replace").splitlines()[len(tail) >= TAIL_BYTES :])  # the first line may be half a line
        if found:
            return found
    return []


def metrics(store: Store, layout: Layout, node_id: str) -> list[dict[str, Any]]:
    """One row a round, in order; a row without a whole number for its round is none."""
    found = rows(lines(store, layout.log(node_id, "metrics.jsonl")))
    by_round = {row["round"]: row for row in found if isinstance(row.get("round"), int)}
    return [by_round[number] for number in sorted(by_round)]


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


def experiment_status(store: Store, layout: Layout) -> ExperimentStatus:
    """What the experiment and each of its nodes is doing. Times are those of the node that wrote them."""
    rounds = Rounds(store, layout)
    newest = rounds.survey()
    current = rounds.read_current()
    names, left_out = most_alive(store, layout, names_at_work(store, layout, newest))
    nodes = tuple(node_status(store, layout, node_id) for node_id in names)
    highest = max((node.round for node in nodes if node.round is not None), default=None)
    return ExperimentStatus(
        experiment=layout.experiment_name,
        status=current.status if current else ("running" if nodes else "empty"),
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


def node_status(store: Store, layout: Layout, node_id: str) -> NodeStatus:
    registration = read_registration(store, layout, node_id)
    recent = last_rows(store, layout.log(node_id, "training_events.jsonl"))
    state: dict[str, Any] = next((row for row in reversed(recent) if row.get("event_type") == "state"), {})
    measured = last_rows(store, layout.log(node_id, "metrics.jsonl"))
    last: dict[str, Any] = measured[-1] if measured else {}
    signs = [_number(row.get("timestamp")) for row in (state, last, recent[-1] if recent else {})]
    signs.append(registration.registered_at if registration else None)
    sequence = newest_heartbeat(store, layout, node_id)
    beat = read_heartbeat(store, layout, node_id, sequence) if sequence is not None else None
    data = state.get("data")
    said: dict[str, Any] = data if isinstance(data, dict) else {}
    doing, since, round_number = _text(said.get("doing")), _number(state.get("timestamp")), _number(said.get("round"))
    if beat and beat.sent_at > (since or 0):
        signs.append(beat.sent_at)
        if beat.doing != doing:
            doing, since, round_number = beat.doing, beat.sent_at, beat.round
    return NodeStatus(
        node_id=node_id,
        role=registration.node_role if registration else "unknown",
        model=registration.model if registration else "",
        doing=doing or "registered",
        since=since,
        round=None if round_number is None or round_number < 0 else int(round_number),
        reward=_number(last.get("reward")),
        last_sign=max((sign for sign in signs if sign is not None), default=None),
        muted=_muted(last.get("muted")),
        name_in_use=beat is not None and bool(beat.twin),
    )


def _muted(value: Any) -> tuple[Mute, ...]:
    """Whom a node says it has muted, if it says so in words that make sense."""
    try:
        return msgspec.convert(value, tuple[Mute, ...])[:MOST_TOLD]
    except msgspec.ValidationError:
        return ()


def _number(value: Any) -> float | None:
    """A journal is a peer's file, too: what is no finite number is as if it were not there."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return value if usable else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
