"""What a node writes about itself: metrics, events, progress and console lines.

On a local disk each journal is a file that grows in place (`tail -f` works). Elsewhere a growing file cannot be trusted, so lines
are collected into numbered segments, published through the spool, and merged under the documented name when the node
stops. `progress.py` reads both. The training loop never reads any of it.
"""

import contextlib
import json
import platform
import resource
import sys
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_swarm import __version__
from rl_swarm.clock import Clock
from rl_swarm.errors import NotFound, Refused, StoreAway
from rl_swarm.runs import progress
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.text import visible

SEGMENT_SECONDS = 30.0
FAR_AHEAD_SECONDS = 10 * 365 * 86_400


class Stream:
    """One journal of a node: lines go in, in order, and none is lost when a write fails."""

    def __init__(self, store: Store, key: str, publisher: Publisher, clock: Clock, warn: Callable[[str], None]) -> None:
        self.store = store
        self.key = key
        self.publisher = publisher
        self.clock = clock
        self._warn = warn
        self._warned = False
        self._lines: list[str] = []
        self._last_flush = clock.monotonic()
        self._sequence = 0

    def append(self, line: str) -> None:
        self._lines.append(line)
        if self.store.appendable or self.clock.monotonic() - self._last_flush >= SEGMENT_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        text = "".join(line + "\n" for line in self._lines).encode("utf-8", "backslashreplace")
        if self.store.appendable:
            if not self._append(text):
                return
        else:
            self.publisher.put(Layout.segment(self.key, self._next_sequence()), text)
        self._lines = []
        self._last_flush = self.clock.monotonic()

    def merge(self, until: float) -> None:
        """Put what the segments say under the documented name, for people; a reader of both counts nothing twice.

        The segments stay: a listing may have left some out and a read may have been short, and nobody could tell afterwards.
        Nothing is written after `until`, when the process may end: half a file would be worse than none.
        """
        if self.store.appendable or self.clock.monotonic() >= until or not progress.segment_keys(self.store, self.key):
            return
        lines = progress.lines(self.store, self.key)
        if self.clock.monotonic() >= until:
            return
        self.store.rewrite(self.key, "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace"))

    def _next_sequence(self) -> int:
        """Beyond the time of day and beyond what the store has: a node that comes back, even with an empty disk, reuses none.

        A number far in the future is none that a node gave.
        """
        now = int(self.clock.wall())
        if self._sequence == 0:
            with contextlib.suppress(StoreAway):
                self._sequence = progress.newest_segment(self.store, self.key, below=now + FAR_AHEAD_SECONDS)
        self._sequence = max(self._sequence + 1, now)
        return self._sequence

    def _append(self, text: bytes) -> bool:
        """False where the disk is full, the folder gone or the name taken: the lines stay here and go out with the next one."""
        try:
            self.store.append(self.key, text)
        except (StoreAway, Refused) as error:
            self.publisher.counters["journal_retries"] += 1
            if isinstance(error, Refused) and not self._warned:
                self._warned = True
                self._warn(f"{visible(str(error))}; until then this journal is kept in memory only")
            return False
        return True


class Journal:
    def __init__(
        self,
        store: Store,
        layout: Layout,
        node_id: str,
        publisher: Publisher,
        clock: Clock,
        console: Callable[[str], None] | None = print,
    ) -> None:
        self.store = store
        self.layout = layout
        self.node_id = node_id
        self.clock = clock
        self.console = console
        self.doing = ("starting", -1)
        self._later: deque[tuple[str, str]] = deque()
        self._started = clock.monotonic()

        def stream(key: str) -> Stream:
            return Stream(store, key, publisher, clock, self.show)

        self._metrics = stream(layout.log(node_id, "metrics.jsonl"))
        self._events = stream(layout.log(node_id, "training_events.jsonl"))
        self._progress = stream(layout.progress(node_id))
        self._out = stream(layout.log(node_id, "stdout.log"))
        self._err = stream(layout.log(node_id, "stderr.log"))

    def metrics(self, row: dict[str, Any]) -> None:
        """One line a round."""
        head = {"timestamp": self.clock.wall(), "node_id": self.node_id, "experiment": self.layout.experiment_name}
        self._metrics.append(_line(head | row))

    def event(self, event_type: str, **data: Any) -> None:
        row = {
            "timestamp": self.clock.wall(),
            "event_type": event_type,
            "node_id": self.node_id,
            "experiment": self.layout.experiment_name,
            "data": data,
        }
        self._events.append(_line(row))

    def progress(self, event: str, round_number: int, reward: float | None = None) -> None:
        row = {
            "timestamp": self.clock.wall(),
            "elapsed_seconds": round(self.clock.monotonic() - self._started, 3),
            "event": event,
            "round": round_number,
            "reward": reward,
            "memory_gb": round(memory_gb(), 3),
        }
        self._progress.append(_line(row))

    def state(self, doing: str, round_number: int) -> None:
        """Say what the node is doing or waiting for, once when it changes."""
        self._tell_later()
        if (doing, round_number) != self.doing:
            self.doing = (doing, round_number)
            self.event("state", doing=doing, round=round_number)

    def say(self, line: str) -> None:
        line = visible(line)  # some lines quote what peers wrote
        self.show(line)
        self._out.append(line)

    def show(self, line: str) -> None:
        """A line for the console alone."""
        if self.console:
            with contextlib.suppress(OSError):  # a full disk must not end a run through its own console
                self.console(line)

    def later(self, event_type: str, line: str) -> None:
        """Say a line and record an event when the loop reports its state next: the one call that any thread may make."""
        self._later.append((event_type, line))

    def _tell_later(self) -> None:
        while self._later:
            event_type, line = self._later.popleft()
            self.say(line)
            self.event(event_type, message=line)

    def error(self, failure: BaseException) -> None:
        """Record what ended this node, before it is raised further."""
        round_number = self.doing[1]
        text = "".join(traceback.format_exception(failure))
        self._err.append(text.rstrip("\n"))
        self.event("error", error=type(failure).__name__, message=str(failure), round=round_number)
        self.progress("error", round_number)
        self.state(f"failed: {type(failure).__name__}: {failure}"[:200], round_number)

    def system_info(self, **more: Any) -> None:
        info = {"rl_swarm": __version__, "python": sys.version.split()[0], "platform": platform.platform()} | more
        try:
            self.store.rewrite(self.layout.log(self.node_id, "system_info.json"), (json.dumps(info, indent=1) + "\n").encode())
        except Refused as error:
            self.say(str(error))

    def rewind(self, round_number: int) -> None:
        """Drop metrics of this round and later, which a resumed node is about to do again, so that no row stands twice.

        Segments and very long journals are never changed; there, and where this fails, the reader takes the last row of a round.
        """
        if not self.store.appendable:
            return
        with contextlib.suppress(NotFound, StoreAway):
            data = self.store.get(self._metrics.key, limit=progress.JOURNAL_BYTES)
            rows = progress.rows(data.decode("utf-8", "replace").splitlines())
            kept = [row for row in rows if isinstance(row.get("round"), int) and row["round"] < round_number]
            if len(data) <= progress.JOURNAL_BYTES:
                self.store.rewrite(self._metrics.key, "".join(_line(row) + "\n" for row in kept).encode())

    def flush(self) -> None:
        self._tell_later()
        for stream in self._streams():
            stream.flush()

    def merge(self, seconds: float) -> None:
        """At the end, when the spool is empty, and for so long."""
        until = self.clock.monotonic() + seconds
        for stream in self._streams():
            with contextlib.suppress(StoreAway, NotFound):  # the segments stay then, and every reader knows them
                stream.merge(until)

    def _streams(self) -> tuple[Stream, ...]:
        return (self._metrics, self._events, self._progress, self._out, self._err)


def memory_gb() -> float:
    """Peak resident memory of this process; on Linux `ru_maxrss` can still hold the peak of the parent that started it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 30 if sys.platform == "darwin" else 1 << 20)
    return int(status.partition("VmHWM:")[2].split()[0]) / (1 << 20)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))
