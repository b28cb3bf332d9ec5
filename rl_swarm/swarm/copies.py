"""Copy a node's journals from its own disk to the store, where others look at them.

The node's own files are the truth and the only ones read here: anybody may have written those in the store. On a local disk the
copy grows in place (`tail -f` works). Elsewhere a growing file cannot be trusted, so new lines go into numbered segments, and the
whole journal under its documented name when the node stops. A file says how much of each journal is copied; after a kill the next
start copies the rest, at worst with some lines twice.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rl_swarm.clock import Clock
from rl_swarm.errors import Refused
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout

GROWING_SECONDS = 1.0  # between two copies to a file that grows in place
SEGMENT_SECONDS = 30.0  # between two segments
CHUNK_BYTES = 4 << 20  # copied at a time
MERGED_BYTES = 64 << 20  # of a longer journal only the segments are in the store
TRIES = 3  # numbers that are tried for a segment


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
        self._copied: dict[str, int] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):  # a damaged file is as good as none
            self._copied = msgspec.json.decode(self.marks.read_bytes(), type=dict[str, int])
        self._refused: set[str] = set()
        self._due = self.clock.monotonic()
        self._sequence = 0

    def bring(self, all_of_it: bool = False) -> None:
        """Copy new lines if a copy is due, or in any case with `all_of_it`. May raise StoreAway."""
        if not all_of_it and self.clock.monotonic() < self._due:
            return
        for key in self.keys:
            while key not in self._refused and (data := self._new_lines(key)):
                try:
                    self._copy(key, data)
                except Refused as error:
                    self._refused.add(key)
                    self.tell(f"{error}; until the next start this journal is on the node's own disk only, in {self.root / key}")
        self._due = self.clock.monotonic() + (GROWING_SECONDS if self.store.appendable else SEGMENT_SECONDS)

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
                file.seek(self._copied.get(key, 0))
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        return data[: data.rfind(b"\n") + 1]

    def _copy(self, key: str, data: bytes) -> None:
        if self.store.appendable:
            self.store.append(key, data)
        else:
            self._put_segment(key, data)
        self._copied[key] = self._copied.get(key, 0) + len(data)
        with contextlib.suppress(OSError):  # a full disk: some lines may be copied twice
            self.marks.write_bytes(msgspec.json.encode(self._copied))

    def _put_segment(self, key: str, data: bytes) -> None:
        """Number segments by the time of day, so that a node that lost its disk reuses no number."""
        for _ in range(TRIES):
            self._sequence = max(self._sequence + 1, int(self.clock.wall()))
            if self.store.put(Layout.segment(key, self._sequence), data):
                return
        raise Refused(f"{Layout.segment(key, self._sequence)} and those before it are taken by somebody else")
