"""Write a node's metrics, events, progress and console lines to its own disk.

The files have the same keys as in a store, so one reader (`runs/progress.py`) reads both; `swarm/copies.py` copies them there. The
training loop never reads them.
"""

import contextlib
import json
import os
import platform
import resource
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from rl_swarm import __version__
from rl_swarm.clock import Clock
from rl_swarm.node.trackers import Trackers
from rl_swarm.runs.record import Round, stamped
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.protocol import News
from rl_swarm.text import visible


class Stream:
    """Append lines to one file. When the disk is full they wait in memory and are written before the next line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""

    def begin(self) -> None:
        """Make the file, so that it is there while it is empty."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()

    def append(self, line: str) -> None:
        self._waiting += f"{line}\n".encode("utf-8", "backslashreplace")
        self.flush()

    def flush(self) -> None:
        if self._waiting:
            with contextlib.suppress(OSError):
                self._write(self._waiting)
                self._waiting = b""

    def _write(self, data: bytes) -> None:
        """Append whole lines: end half a line that a killed process left, and undo a write that fails."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                data = b"\n" + data
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(end)
                raise


class Journal:
    """The journals of one node. `root` is the folder that stands for the root of a store; `stamps` prints lines with their time."""

    def __init__(
        self,
        root: Path,
        layout: Layout,
        node_id: str,
        clock: Clock,
        console: Callable[[str], None] | None = print,
        stamps: bool = False,
    ) -> None:
        self.layout = layout
        self.node_id = node_id
        self.clock = clock
        self.console, self.stamps = console, stamps
        self.doing = ("", -1)
        self.trackers: Trackers | None = None
        self._root = root
        self._started = clock.monotonic()
        self._streams = [Stream(root / key) for key in layout.journals(node_id)]
        self._metrics, self._events, self._out, self._err, self._progress = self._streams
        self._err.begin()

    def round_done(self, record: Round) -> None:
        """Write the record of a round. A killed node may play a round again: readers take the last record."""
        self._metrics.append(msgspec.json.encode(record).decode())
        if self.trackers:
            self.trackers.record(record)
        self.progress("round_complete", record.round, record.reward)

    def event(self, event_type: str, **data: Any) -> None:
        row = {
            "timestamp": self.clock.wall(),
            "event_type": event_type,
            "node_id": self.node_id,
            "experiment": self.layout.experiment_name,
            "data": data,
        }
        self._events.append(json.dumps(row, separators=(",", ":")))

    def progress(self, event: str, round_number: int, reward: float | None = None) -> None:
        row = {
            "timestamp": self.clock.wall(),
            "elapsed_seconds": round(self.clock.monotonic() - self._started, 3),
            "event": event,
            "round": round_number,
            "reward": reward,
            "memory_gb": round(memory_gb(), 3),
        }
        self._progress.append(json.dumps(row, separators=(",", ":")))

    def state(self, doing: str, round_number: int) -> None:
        """Record what the node is doing or waiting for, if it has changed."""
        if (doing, round_number) != self.doing:
            self.doing = (doing, round_number)
            self.event("state", doing=doing, round=round_number)

    def say(self, line: str) -> None:
        """Print a line, and keep it with its time: `logs` sorts the lines of all nodes."""
        line = visible(line)  # some lines quote what peers wrote
        kept = stamped(self.clock.wall(), line)
        self._out.append(kept)
        self._print(kept if self.stamps else line)

    def show(self, line: str) -> None:
        """Print a line to the console only."""
        self._print(stamped(self.clock.wall(), line) if self.stamps else line)

    def _print(self, line: str) -> None:
        if self.console:
            with contextlib.suppress(OSError):  # a full disk must not end a run through its own console
                self.console(line)

    def note(self, event_type: str, line: str, **data: Any) -> None:
        """Print a line, if there is one, and record it with its event."""
        if line:
            self.say(line)
            data = {"message": line} | data
        self.event(event_type, **data)

    def tell(self, news: Iterable[News]) -> None:
        for each in news:
            self.note(each.event, each.line, **each.details)

    def error(self, failure: BaseException) -> None:
        """Record the failure that ends this node."""
        round_number = self.doing[1]
        now, lines = self.clock.wall(), "".join(traceback.format_exception(failure)).rstrip("\n").split("\n")
        self._err.append("\n".join(stamped(now, line) for line in lines))
        self.event("error", error=type(failure).__name__, message=str(failure), round=round_number)
        self.progress("error", round_number)
        self.state(f"failed: {type(failure).__name__}: {failure}"[:200], round_number)

    def system_info(self, **more: Any) -> bytes:
        """Write what this node runs on, and return the document."""
        info = {"rl_swarm": __version__, "python": sys.version.split()[0], "platform": platform.platform()} | more
        data = (json.dumps(info, indent=1) + "\n").encode()
        path = self._root / self.layout.system_info(self.node_id)
        with contextlib.suppress(OSError):  # a node on a full disk does without it
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return data

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()


def memory_gb() -> float:
    """Return the peak resident memory of this process. On Linux `ru_maxrss` may still hold the peak of the parent process."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 30 if sys.platform == "darwin" else 1 << 20)
    return int(status.partition("VmHWM:")[2].split()[0]) / (1 << 20)
