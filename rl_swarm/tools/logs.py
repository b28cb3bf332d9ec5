"""Show what nodes have said and recorded, all nodes in one order of time.

A node's own record on this machine is read as well as the copies in the store, which come later. So are the consoles of `rl-swarm
swarm` here: they have what a node printed before it could write a journal, or while it crashed. Memory is bounded: of long journals
only the end is read. Anybody may have written a journal in the store, so its text takes no effect.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.node.local import home_of, record_of
from rl_swarm.runs.following import Tail
from rl_swarm.runs.progress import EVENTS, METRICS, rows, segment_keys
from rl_swarm.runs.record import Round, unstamped, valid
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.peers import most_alive
from rl_swarm.text import one_line, visible
from rl_swarm.tools.opening import Run

CONSOLES = ("stdout.log", "stderr.log")
BYTES_A_LINE = 2048  # a row of metrics has about as many
LEAST_BYTES, MOST_BYTES = 256 << 10, 8 << 20  # read of one journal
REMEMBERED = 200_000  # lines that are not shown again, if a journal is rewritten or has two copies
REMEMBERED_OF_NODE = 10_000  # lines of a node's journal that are looked for in its console
DISK_SECONDS, MOUNT_SECONDS = 0.5, 5.0  # between two looks
LATEST = 4e9  # seconds since 1970: clocks that claim more are wrong
LONGEST = 1000  # characters of a line
MOST_NAMED = 20  # nodes in an error
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")


@dataclass(frozen=True)
class Entry:
    """A line of a console, or a row of another journal. `text` is empty where the console says the same."""

    timestamp: float
    node_id: str
    text: str
    row: dict[str, Any]
    detail: bool = False  # a state, or the figures of a round: there are many


class Memory:
    """The last lines that were seen."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._seen: set[int] = set()

    def new(self, *line: str) -> bool:
        mark = hash(line)
        if mark in self._seen:
            return False
        self._seen.add(mark)
        self._order.append(mark)
        if len(self._order) > REMEMBERED:
            self._seen.discard(self._order.popleft())
        return True


class ConsoleFile:
    """The output of a node that `rl-swarm swarm` has started on this machine, read from where the last look ended."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path, self.most_bytes = path, most_bytes
        self._offset = 0

    def lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                start = max(self._offset if self._offset <= size else 0, size - self.most_bytes)
                file.seek(start)
                data = file.read(self.most_bytes)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = start + len(whole)
        return whole.decode("utf-8", "replace").splitlines()


class Lines(Tail):
    """The lines of a journal, whether they are JSON or not."""

    def new_lines(self) -> list[str]:
        there = segment_keys(self.store, self.key)
        return (self._new_segments(there) if there or self._segments else self._grown())[1]


class NodeLog:
    """The journals of one node in one or two stores, and its console."""

    def __init__(self, node_id: str, stores: Iterable[Store], layout: Layout, console: ConsoleFile, memory: Memory) -> None:
        self.node_id = node_id
        names = (*CONSOLES, EVENTS, METRICS)
        self._tails = [(name, Lines(store, layout.log(node_id, name), console.most_bytes)) for store in stores for name in names]
        self._console = console
        self._memory = memory
        self._told: dict[str, float] = {}  # lines in the journal, and when they were said
        self._last = 0.0

    def look(self) -> list[Entry]:
        """Return what is new; raise StoreAway if a store does not answer."""
        printed = self._console.lines()  # before the journals: what is printed is in them already
        found: list[Entry] = []
        for name, tail in self._tails:
            lines = [line for line in tail.new_lines() if self._memory.new(self.node_id, name, line)]
            found += self._said(lines) if name in CONSOLES else self._recorded(name, rows(lines))
        return [*found, *self._only_printed(printed)]

    def _said(self, lines: Iterable[str]) -> Iterator[Entry]:
        moment = self._last
        for line in lines:
            said, text = unstamped(line)
            moment = moment if said is None else said
            self._told[text] = moment
            yield self._line(moment, text)
        self._last = max(self._last, moment)
        for text in list(self._told)[:-REMEMBERED_OF_NODE]:
            del self._told[text]

    def _only_printed(self, lines: Iterable[str]) -> Iterator[Entry]:
        """Lines that no journal has, at the time of the line before them."""
        moment = self._last
        for line in lines:
            if line in self._told:
                moment = self._told[line]
            elif line:
                yield self._line(moment, line)

    def _recorded(self, name: str, found: Iterable[dict[str, Any]]) -> Iterator[Entry]:
        for row in found:
            said = row.get("timestamp")
            moment = float(said) if isinstance(said, int | float) and 0 <= said <= LATEST else self._last
            text = _figures(row) if name == METRICS else _event(row)
            yield Entry(moment, self.node_id, text, row, detail=name == METRICS or row.get("event_type") == "state")

    def _line(self, moment: float, text: str) -> Entry:
        row = {"timestamp": moment, "node_id": self.node_id, "line": text}
        return Entry(moment, self.node_id, text.removeprefix(f"{self.node_id}: "), row)


def _event(row: dict[str, Any]) -> str:
    data = row.get("data")
    if not isinstance(data, dict) or "message" in data:  # such a line is in the console
        return ""
    return f"{row.get('event_type')}: {', '.join(f'{name} {value}' for name, value in data.items())}"


def _figures(row: dict[str, Any]) -> str:
    figures = (f"{name} {value:.4g}" for name, value in row.items() if type(value) is float and name != "timestamp")
    return f"figures of round {row['round']}: {', '.join(figures)}" if valid([row], Round) else ""


class Logs:
    """The nodes of a run, or one of them; nodes that come later are found."""

    def __init__(self, run: Run, node_id: str | None, most_bytes: int) -> None:
        self.run, self.node_id, self.most_bytes = run, node_id, most_bytes
        self.consoles = home_of(run.config) / "consoles" / run.config.experiment_name
        self._nodes: dict[str, NodeLog] = {}
        self._memory = Memory()

    def names(self) -> list[str]:
        """The nodes that have registered, and those that only have a console here."""
        here = {path.stem for path in self.consoles.glob("*.log")}
        return sorted(here | set(most_alive(self.run.store, self.run.layout)[0]))

    def look(self) -> list[Entry]:
        """Return what is new, in order of time."""
        for name in [self.node_id] if self.node_id else self.names():
            if name not in self._nodes:
                self._nodes[name] = self._meet(name)
        found = [entry for node in self._nodes.values() for entry in node.look()]
        return sorted(found, key=lambda entry: entry.timestamp)

    def _meet(self, node_id: str) -> NodeLog:
        own = record_of(self.run.home / node_id)
        stores = [*([FolderStore(own, local=True)] if own.is_dir() else []), self.run.store]
        console = ConsoleFile(self.consoles / f"{node_id}.log", self.most_bytes)
        return NodeLog(node_id, stores, self.run.layout, console, self._memory)


class Printer:
    """Print entries for people, or as rows of JSON for programs. `detailed` also shows states and the figures of rounds."""

    def __init__(self, console: Console, as_json: bool, detailed: bool) -> None:
        self.console, self.as_json, self.detailed = console, as_json, detailed
        self._colours: dict[str, str] = {}

    def shows(self, entry: Entry) -> bool:
        return self.as_json or bool(entry.text and (self.detailed or not entry.detail))

    def print(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self.as_json:
                self.console.out(json.dumps(entry.row), highlight=False)
            else:
                self._print_line(entry)

    def _print_line(self, entry: Entry) -> None:
        colour = self._colours.setdefault(entry.node_id, COLOURS[len(self._colours) % len(COLOURS)])
        moment, today = time.localtime(entry.timestamp), time.strftime("%m-%d")
        day = time.strftime("%m-%d", moment)
        at = time.strftime("%H:%M:%S", moment) if day == today else f"{day} {time.strftime('%H:%M:%S', moment)}"
        line = Text.assemble((at, "dim"), " ", (visible(entry.node_id), colour), " ", visible(one_line(entry.text, LONGEST)))
        self.console.print(line, soft_wrap=True)


def show_logs(run: Run, node_id: str | None, printer: Printer, most: int, follow: Clock | None = None) -> None:
    """Print the newest lines; with a clock to wait with, go on until Ctrl-C."""
    logs = Logs(run, node_id, min(MOST_BYTES, max(LEAST_BYTES, most * BYTES_A_LINE)))
    if node_id and node_id not in (names := logs.names()):
        known = ", ".join(names[:MOST_NAMED]) or "nobody"
        raise ConfigError(f"there is no node {node_id!r} in {run.config.experiment_name!r}, which has {known}: check the name")
    printer.print([entry for entry in logs.look() if printer.shows(entry)][-most:])
    away = ""
    while follow:
        follow.sleep(DISK_SECONDS if run.store.appendable else MOUNT_SECONDS)
        try:
            printer.print(filter(printer.shows, logs.look()))
            away = ""
        except StoreAway as error:
            if str(error) != away:
                printer.console.print(Text(visible(str(error))), soft_wrap=True)
            away = str(error)
