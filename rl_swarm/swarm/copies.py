"""Copy a node's journals from its own disk to the store, where others look at them.

The node's own files are the truth and the only ones read here: anybody may have written those in the store. On a local disk the
copy grows in place (`tail -f` works). Elsewhere a growing file cannot be trusted, so new lines go into numbered segments, and the
whole journal under its documented name when the node stops. A file says how much of each journal is copied; after a kill the next
start copies the rest, at worst with some lines twice.

Segments stay few however long the run: twenty are put into one, twenty of those into one, and so on. They are removed when the next
ones are put together, since a Drive may take minutes to upload the one that replaces them. Readers skip what is there twice.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rl_swarm.clock import Clock
from rl_swarm.errors import Refused
from rl_swarm.store import Store
from rl_swarm.swarm.layout import SEGMENT_STEP, Layout

GROWING_SECONDS = 1.0  # between two copies to a file that grows in place
CHUNK_BYTES = 4 << 20  # copied at a time
MERGED_BYTES = 64 << 20  # of a longer journal only the segments are in the store
TRIES = 3  # numbers that are tried for a segment
FANOUT = 20  # segments that are put into one
LAST_LEVEL = SEGMENT_STEP - 1  # of segments that are not put together any more, since they are large


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A segment in the store: its number, the bytes of the journal that it has, and how often it was put together."""

    number: int
    begin: int
    end: int
    level: int = 0


class Mark(msgspec.Struct):
    """How much of a journal is copied, in which segments, and the numbers of segments that others have replaced."""

    copied: int = 0
    segments: list[Segment] = []
    outdated: list[int] = []


@dataclass(eq=False)
class Copies:
    """`root` has the node's journals under the same keys as the store; the file `marks` says how much of each is copied."""

    root: Path
    keys: Sequence[str]
    store: Store
    marks: Path
    clock: Clock
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._marks: dict[str, Mark] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):  # a damaged file is as good as none
            self._marks = msgspec.json.decode(self.marks.read_bytes(), type=dict[str, Mark])
        self._marks |= {key: Mark() for key in self.keys if key not in self._marks}
        self._refused: set[str] = set()
        self._due = self.clock.monotonic()
        newest = max((each.number for mark in self._marks.values() for each in mark.segments), default=0)
        self._sequence = newest - newest % SEGMENT_STEP  # numbers rise, also if the clock was put back

    def bring(self, all_of_it: bool = False) -> None:
        """Copy new lines if a copy is due, or in any case with `all_of_it`. May raise StoreAway."""
        if not all_of_it and self.clock.monotonic() < self._due:
            return
        for key in self.keys:
            while key not in self._refused and (data := self._new_lines(key)):
                try:
                    self._put_together(key)
                    self._copy(key, data)
                except Refused as error:
                    self._refused.add(key)
                    self.tell(f"{error}; until the next start this journal is on the node's own disk only, in {self.root / key}")
        self._due = self.clock.monotonic() + (GROWING_SECONDS if self.store.appendable else self.store.journal_seconds)

    def merge(self, until: float) -> None:
        """Put whole journals under their documented names, for people; begin none after `until`."""
        for key in () if self.store.appendable else self.keys:
            path = self.root / key
            if self.clock.monotonic() < until and path.exists() and path.stat().st_size <= MERGED_BYTES:
                with contextlib.suppress(Refused):  # its segments exist
                    self.store.rewrite(key, path.read_bytes())

    def _new_lines(self, key: str) -> bytes:
        try:
            with (self.root / key).open("rb") as file:
                file.seek(self._marks[key].copied)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        return data[: data.rfind(b"\n") + 1]

    def _copy(self, key: str, data: bytes) -> None:
        mark = self._marks[key]
        end = mark.copied + len(data)
        if self.store.appendable:
            self.store.append(key, data)
        else:
            mark.segments.append(Segment(self._put_segment(key, data), mark.copied, end))
        mark.copied = end
        self._save_marks()

    def _save_marks(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: some lines may be copied twice
            self.marks.write_bytes(msgspec.json.encode(self._marks))

    def _put_together(self, key: str) -> None:
        """Replace the newest segments by one if there are enough of one level; remove those that were replaced the time before."""
        mark = self._marks[key]
        level = mark.segments[-1].level if mark.segments else LAST_LEVEL
        newest = list(itertools.takewhile(lambda each: each.level == level, reversed(mark.segments)))[::-1]
        if level >= LAST_LEVEL or len(newest) < FANOUT:
            return
        begin, end, number = newest[0].begin, newest[-1].end, newest[-1].number
        if end - begin > CHUNK_BYTES:
            mark.segments[-len(newest) :] = [msgspec.structs.replace(each, level=LAST_LEVEL) for each in newest]
            return
        with (self.root / key).open("rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
        name = Layout.segment(key, number + level + 1)
        if not self.store.put(name, data):  # this node wrote it before it was killed, or somebody else has taken the name
            self.store.rewrite(name, data)
        replaced, mark.outdated = mark.outdated, [each.number for each in newest]
        mark.segments[-len(newest) :] = [Segment(number + level + 1, begin, end, level + 1)]
        self._save_marks()
        for old in replaced:
            self.store.delete(Layout.segment(key, old))

    def _put_segment(self, key: str, data: bytes) -> int:
        """Number segments by the time of day, so that a node that lost its disk reuses no number; return the number."""
        for _ in range(TRIES):
            self._sequence = max(self._sequence + SEGMENT_STEP, int(self.clock.wall()) * SEGMENT_STEP)
            if self.store.put(Layout.segment(key, self._sequence), data):
                return self._sequence
        raise Refused(f"{Layout.segment(key, self._sequence)} and those before it are taken by somebody else")
