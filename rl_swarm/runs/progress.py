"""Read a run: its journals, and what every node is doing. Changes nothing.

This is the one reader of journals, whether they grew in place or were written as segments. A line counts once however often it is
stored.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_swarm.errors import ConfigError, NotFound
from rl_swarm.runs.record import Round, State, by_round, valid
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout, sequence_of_file
from rl_swarm.swarm.peers import most_alive, newest_heartbeat, read_registration
from rl_swarm.swarm.rounds import Rounds, names_at_work
from rl_swarm.swarm.signatures import Signatures
from rl_swarm.swarm.standing import MOST_TOLD, Mute
from rl_swarm.text import one_line

METRICS, EVENTS = "metrics.jsonl", "training_events.jsonl"
TAIL_BYTES = 64 << 10
JOURNAL_BYTES = 64 << 20  # read of one journal, and of all its segments together: the newest
SEGMENT_BYTES = 4 << 10  # what a segment counts for at least, which limits their number to 16,384
MOST_TAILS = 256  # segments that are searched for the newest row


def segment_keys(store: Store, key: str) -> list[str]:
    """Return the segments of a journal in the order in which they were written."""
    folder = Layout.segments(key)
    names = {name for name in store.list(folder) if sequence_of_file(name) is not None}
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: sequence_of_file(name) or 0)]


def segment_lines(store: Store, keys: Sequence[str], most_bytes: int | None = None) -> list[str]:
    """Return the lines of these segments in order; only the newest of too many or too long ones, since anybody may write them."""
    left, found = most_bytes or JOURNAL_BYTES, list[list[str]]()
    for key in reversed(keys):
        if left < SEGMENT_BYTES:
            break
        data = read(store, key, left)
        left -= max(len(data), SEGMENT_BYTES)
        found.append(text_lines(data))
    return [line for part in reversed(found) for line in part]


def lines(store: Store, key: str, most_bytes: int | None = None) -> list[str]:
    """Return the newest lines of a journal, each once and in order; a line that was written twice is there twice.

    The documented file may be a copy of the segments, may have grown after they were merged, or may have grown in place before the
    folder was used through a mount.
    """
    in_file = _newest_lines(store, key, most_bytes or JOURNAL_BYTES)
    in_segments = segment_lines(store, segment_keys(store, key), most_bytes)
    return in_file + in_segments[_shared(in_file, in_segments) :]


def read(store: Store, key: str, limit: int, offset: int = 0) -> bytes:
    try:
        return store.get(key, limit=limit, offset=offset)[:limit]
    except NotFound:
        return b""


def text_lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


def _newest_lines(store: Store, key: str, most_bytes: int) -> list[str]:
    tail = read(store, key, most_bytes, offset=-most_bytes)
    return text_lines(tail)[len(tail) >= most_bytes :]  # the first line may be half a line


def _shared(text: Sequence[str], part: Sequence[str]) -> int:
    """Count the first lines of `part` that `text` ends with; all of them if `text` has them anywhere.

    Uses the prefix function of Knuth, Morris and Pratt, which takes linear time whatever the lines are.
    """
    joined = [*part, None, *text]  # no line equals None, so no match is longer than `part`
    matched = [0] * len(joined)
    for place in range(1, len(joined)):
        length = matched[place - 1]
        while length and joined[place] != joined[length]:
            length = matched[length - 1]
        matched[place] = length + (joined[place] == joined[length])
        if matched[place] == len(part):
            return len(part)
    return matched[-1]


def rows(journal_lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the JSON objects among the lines. The last line of a killed node may be half a line, which is skipped."""
    found = []
    for line in journal_lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the latter for thousands of nested brackets
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def last_rows(store: Store, key: str) -> list[dict[str, Any]]:
    """Return the newest rows of a journal without reading all of it."""
    for part in [*segment_keys(store, key)[: -MOST_TAILS - 1 : -1], key]:
        found = rows(_newest_lines(store, part, TAIL_BYTES))
        if found:
            return found
    return []


def records(store: Store, layout: Layout, node_id: str) -> list[Round]:
    """Return a node's records, one a round, in order."""
    return list(by_round(valid(rows(lines(store, layout.log(node_id, METRICS))), Round)).values())


def events(store: Store, layout: Layout, node_id: str) -> list[dict[str, Any]]:
    return rows(lines(store, layout.log(node_id, EVENTS)))


def data_of(events: Iterable[Mapping[str, Any]], event_type: str) -> list[Any]:
    return [event.get("data") for event in events if event.get("event_type") == event_type]


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
    name_in_use: bool = False  # the node has noticed another process with its name


@dataclass(frozen=True)
class ExperimentStatus:
    experiment: str
    status: str
    round: int | None
    opened_at: float | None
    nodes: tuple[NodeStatus, ...]
    left_out: int = 0  # registered nodes that were not read

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def experiment_status(store: Store, layout: Layout, founder: str | None = None) -> ExperimentStatus:
    """Read what the experiment and each of its nodes is doing. Times are on the clock of the node that wrote them.

    In a signed experiment only signed rounds and nodes count; raise ConfigError if it is not `founder`'s.
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
    """Read the status of every experiment in a store, also where nobody has played yet; skip folders that hold none."""
    found = [experiment_status(store, Layout(name)) for name in experiments.names(store)]
    return [status for status in found if status.status != "empty" or _published(store, Layout(status.experiment))]


def _published(store: Store, layout: Layout) -> bool:
    try:
        return experiments.read(store, layout) is not None
    except ConfigError:  # damaged, or not written by a node
        return False


def node_status(store: Store, layout: Layout, node_id: str, signatures: Signatures | None = None) -> NodeStatus:
    registration = read_registration(store, layout, node_id, signatures)
    states = valid(last_rows(store, layout.log(node_id, EVENTS)), State)
    last = next(reversed(valid(last_rows(store, layout.log(node_id, METRICS)), Round)), None)
    signs = [row.timestamp for row in (*states[-1:], last) if row] + ([registration.registered_at] if registration else [])
    doing, since, number = "registered", None, -1
    for state in states[-1:]:
        doing, since, number = one_line(state.data.doing), state.timestamp, state.data.round
    beat = newest_heartbeat(store, layout, node_id, signatures)
    if beat and beat.sent_at > (since or 0):
        signs.append(beat.sent_at)
        if one_line(beat.doing) != doing:
            doing, since, number = one_line(beat.doing), beat.sent_at, beat.round
    return NodeStatus(
        node_id=node_id,
        role=one_line(registration.node_role) if registration else "unknown",
        model=one_line(registration.model) if registration else "",
        doing=doing,
        since=since,
        round=None if number < 0 else number,
        reward=last.reward if last else None,
        last_sign=max(signs, default=None),
        muted=tuple(Mute(one_line(each.peer), one_line(each.reason), each.until) for each in last.muted[:MOST_TOLD])
        if last
        else (),
        name_in_use=beat is not None and bool(beat.twin),
    )
