"""Bring a node's journals from its own disk to the store, where others look at them.

The node's own files are the truth, and the only ones read here: what lies in the store may be anybody's. On a local disk the copy
grows in place (`tail -f` works). Elsewhere a growing file cannot be trusted, so what is new goes into numbered segments, and all of
it under the documented name when the node stops. How far a journal is copied stands in a file: what a killed node did not get to
is copied at its next start, at worst with some lines twice.
"""

import contextlib
from collections.abc import Callable, Sequence
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


class Copies:
    """`root` has the node's journals under the same keys as the store; `marks` is the file that says how far each is copied."""

    def __init__(
        self, root: Path, keys: Sequence[str], store: Store, marks: Path, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self._root, self._keys, self._store, self._marks, self._clock, self._tell = root, keys, store, marks, clock, tell
        self._copied: dict[str, int] = _read(marks)
        self._refused: set[str] = set()
        self._due = clock.monotonic()
        self._sequence = 0

    def bring(self, all_of_it: bool = False) -> None:
        """Copy new lines if a copy is due, or in any case with `all_of_it`. Raise StoreAway if the store does not answer."""
        if not all_of_it and self._clock.monotonic() < self._due:
            return
        for key in self._keys:
            while key not in self._refused and (data := self._new_lines(key)):
                try:
                    self._copy(key, data)
                except Refused as error:
                    self._refused.add(key)
                    self._tell(f"{error}; until the next start this journal is on the node's own disk only, in {self._root / key}")
        self._due = self._clock.monotonic() + (GROWING_SECONDS if self._store.appendable else SEGMENT_SECONDS)

    def merge(self, until: float) -> None:
        """Put whole journals under their documented names, for people; nothing is begun after `until`."""
        for key in () if self._store.appendable else self._keys:
            path = self._root / key
            if self._clock.monotonic() < until and path.exists() and path.stat().st_size <= MERGED_BYTES:
                with contextlib.suppress(Refused):  # its segments are there
                    self._store.rewrite(key, path.read_bytes())

    def _new_lines(self, key: str) -> bytes:
        try:
            with (self._root / key).open("rb") as file:
                file.seek(self._copied.get(key, 0))
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        return data[: data.rfind(b"\n") + 1]

    def _copy(self, key: str, data: bytes) -> None:
        if self._store.appendable:
            self._store.append(key, data)
        else:
            self._put_segment(key, data)
        self._copied[key] = self._copied.get(key, 0) + len(data)
        with contextlib.suppress(OSError):  # a full disk: some lines may be copied twice
            self._marks.write_bytes(msgspec.json.encode(self._copied))

    def _put_segment(self, key: str, data: bytes) -> None:
        """Under a number that follows from the time of day: a node that comes back with an empty disk, too, reuses none."""
        for _ in range(TRIES):
            self._sequence = max(self._sequence + 1, int(self._clock.wall()))
            if self._store.put(Layout.segment(key, self._sequence), data):
                return
        raise Refused(f"{Layout.segment(key, self._sequence)} and those before it are taken by somebody else")


def _read(marks: Path) -> dict[str, int]:
    """What the file says; one that is damaged is as good as none."""
    try:
        return msgspec.json.decode(marks.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return {}
