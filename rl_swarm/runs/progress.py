"""The one reader of journals, whether they grew in place or were written as segments. A line counts once however often it is
stored. Changes nothing.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_swarm.errors import NotFound
from rl_swarm.runs.record import Round, Start, by_round, unstamped, valid
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, is_put_together, sequence_of_file

METRICS, EVENTS = "metrics.jsonl", "training_events.jsonl"
TAIL_BYTES = 64 << 10
JOURNAL_BYTES = 64 << 20  # read of one journal, and of all its segments together: the newest
SEGMENT_BYTES = 4 << 10  # what a segment of a whole journal counts for at least, which limits their number to 16,384
MOST_TAILS = 256  # segments that are searched for the newest rows


def segment_keys(store: Store, key: str) -> list[str]:
    """Return the segments of a journal in the order in which they were written."""
    folder = Layout.segments(key)
    names = {name for name in store.list(folder) if sequence_of_file(name) is not None}
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: sequence_of_file(name) or 0)]


def segment_lines(store: Store, keys: Sequence[str], most_bytes: int | None = None) -> list[str]:
    """Return the lines of these segments in order; only the newest of too many or too long ones, since anybody may write them."""
    left, found = most_bytes or JOURNAL_BYTES, list[tuple[str, list[str]]]()
    least = min(SEGMENT_BYTES, left // MOST_TAILS)
    for key in reversed(keys):
        if left < SEGMENT_BYTES:
            break
        data = read(store, key, left, offset=-left)
        found.append((key, _whole_lines(data, left)))
        left -= max(len(data), least)
    joined: list[str] = []
    for key, part in reversed(found):
        if is_put_together(key.rpartition("/")[2]):  # the segments that it replaces may still be there, or the newer of them
            there = sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(reversed(joined), reversed(part), strict=False))
            )
            del joined[len(joined) - there :]
        joined += part
    return joined


def lines(store: Store, key: str, most_bytes: int | None = None) -> list[str]:
    """Return the newest lines of a journal, each once and in order; a line that was written twice is there twice.

    The documented file may be a copy of the segments, may have grown after they were merged, or may have grown in place before the
    folder was used through a mount, or after it was copied from a store that has segments.
    """
    in_file = newest_lines(store, key, most_bytes or JOURNAL_BYTES)
    in_segments = segment_lines(store, segment_keys(store, key), most_bytes)
    file_first, segments_first = _shared(in_file, in_segments), _shared(in_segments, in_file)
    apart = not file_first and not segments_first and in_file and in_segments
    if segments_first > file_first or (apart and _time_of(in_segments[0]) < _time_of(in_file[0])):
        # The file grew after they were merged, or in another store, or a limit has cut it shorter.
        return in_segments + in_file[segments_first:]
    return in_file + in_segments[file_first:]


def read(store: Store, key: str, limit: int, offset: int = 0) -> bytes:
    try:
        return store.get(key, limit=limit, offset=offset)[:limit]
    except NotFound:
        return b""


def text_lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


def newest_lines(store: Store, key: str, most_bytes: int) -> list[str]:
    return _whole_lines(read(store, key, most_bytes, offset=-most_bytes), most_bytes)


def _whole_lines(tail: bytes, most_bytes: int) -> list[str]:
    return text_lines(tail)[len(tail) >= most_bytes :]  # the first line may be half a line


def _time_of(line: str) -> float:
    """When a line was written, by its own word; 0 if it does not say."""
    row = next(iter(rows([line])), {})
    said = row.get("timestamp", unstamped(line)[0])
    return said if isinstance(said, float) else 0.0


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
    return rows(lines(store, key, TAIL_BYTES))


def records(store: Store, layout: Layout, node_id: str) -> list[Round]:
    """Return a node's records, one a round, in order."""
    return list(by_round(valid(rows(lines(store, layout.log(node_id, METRICS))), Round)).values())


def events(store: Store, layout: Layout, node_id: str) -> list[dict[str, Any]]:
    return rows(lines(store, layout.log(node_id, EVENTS)))


def kept_rounds(records: Iterable[Round], events: Iterable[Mapping[str, Any]]) -> list[Round]:
    """Leave out rounds that a node played and then lost, because it came back from a checkpoint before them."""
    kept = list(records)
    for start in valid(events, Start):
        kept = [row for row in kept if row.round < start.data.round or row.timestamp >= start.timestamp]
    return kept


def data_of(events: Iterable[Mapping[str, Any]], event_type: str) -> list[Any]:
    return [event.get("data") for event in events if event.get("event_type") == event_type]
