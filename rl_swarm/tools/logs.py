"""Show what nodes have said and recorded, all nodes in one order of time.

A node's own record on this machine is read as well as the copies in the store, which come later. So are the consoles of `rl-swarm
swarm` here: they have what a node printed before it could write a journal, or while it crashed. Memory is bounded: of long journals
only the end is read. Anybody may have written a journal in the store, so its text takes no effect.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from rl_swarm.clock import Clock
from rl_swarm.errors import ConfigError, StoreAway
from rl_swarm.node.local import home_of, record_of
from rl_swarm.processes.children import ConsoleFile
from rl_swarm.runs.following import Tail
from rl_swarm.runs.progress import EVENTS, METRICS, rows
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
MOST_LINES = 100_000
DISK_SECONDS, MOUNT_SECONDS = 0.5, 5.0  # between two looks
LATEST = 4e9  # seconds since 1970: clocks that claim more are wrong
LONGEST = 1000  # characters of a line
MOST_NAMED = 20  # nodes in an error
# Events that the console does not tell: the details that each must have, and the line for people.
PLAIN = {
    "state": ({"doing"}, "now {doing}"),
    "started": ({"round", "epoch"}, "started as coordinator, epoch {epoch}"),
    "adopted": ({"round"}, "workers are ahead: opening round {round} for them"),
    "model_loaded": ({"model", "device"}, "loaded {model} on {device}"),
    "store_away": ({"error"}, "the store is away: {error}"),
    "round_taken": ({"round", "error"}, "round {round} is taken by a file that cannot be used: {error}"),
}
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


class NodeLog:
    """The journals of one node in one or two stores, and its console."""

    def __init__(self, node_id: str, stores: Iterable[Store], layout: Layout, console: ConsoleFile, memory: Memory) -> None:
        self.node_id = node_id
        names = (*CONSOLES, EVENTS, METRICS)
        self._tails = [(name, Tail(store, layout.log(node_id, name), console.most_bytes)) for store in stores for name in names]
        self._console = console
        self._memory = memory
        self._last = 0.0  # when the last line was said

    def look(self) -> list[Entry]:
        """Return what is new; raise StoreAway if a store does not answer."""
        printed = self._console.lines()  # before the journals: what is printed is in them already
        found: list[Entry] = []
        for name, tail in self._tails:
            _, lines = tail.lines()
            found += self._said(lines, self._last) if name in CONSOLES else self._recorded(name, lines)
        return [*found, *self._said(printed, self._console.changed)]

    def _said(self, lines: Iterable[str], moment: float) -> Iterator[Entry]:
        """Entries of a console's lines; one without a time, such as a library's warning, has that of the line before."""
        for line in lines:
            said, text = unstamped(line)
            moment = moment if said is None else said
            if text and self._memory.new(self.node_id, line):
                self._memory.new(self.node_id, text)  # a crash is in stderr.log with its time, and in the console without
                yield Entry(moment, self.node_id, text.removeprefix(f"{self.node_id}: "), self._row(moment, text))
        self._last = max(self._last, moment)

    def _row(self, moment: float, text: str) -> dict[str, Any]:
        return {"timestamp": moment, "node_id": self.node_id, "line": text}

    def _recorded(self, name: str, lines: Iterable[str]) -> Iterator[Entry]:
        for row in rows(line for line in lines if self._memory.new(self.node_id, line)):
            said = row.get("timestamp")
            moment = float(said) if isinstance(said, int | float) and 0 <= said <= LATEST else self._last
            text = _figures(row) if name == METRICS else _event(row)
            yield Entry(moment, self.node_id, text, row, detail=name == METRICS or row.get("event_type") == "state")


def _event(row: dict[str, Any]) -> str:
    data = row.get("data")
    if not isinstance(data, dict) or "message" in data:  # such a line is in the console
        return ""
    kind = str(row.get("event_type"))
    if kind in PLAIN and data.keys() >= PLAIN[kind][0]:
        return PLAIN[kind][1].format_map(data)
    details = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in data.items())
    return f"{kind.replace('_', ' ')}: {details}"


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

    def look(self, wanted: Callable[[Entry], bool], most: int = MOST_LINES) -> list[Entry]:
        """Return the newest of what is new and wanted, in order of time."""
        for name in [self.node_id] if self.node_id else self.names():
            if name not in self._nodes:
                self._nodes[name] = self._meet(name)
        found: list[Entry] = []
        for node in self._nodes.values():
            found = sorted([*found, *filter(wanted, node.look())], key=lambda entry: entry.timestamp)[-most:]
        return found

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
    printer.print(logs.look(printer.shows, most))
    away = ""
    while follow:
        follow.sleep(DISK_SECONDS if run.store.appendable else MOUNT_SECONDS)
        try:
            printer.print(logs.look(printer.shows))
            away = ""
        except StoreAway as error:
            if str(error) != away:
                printer.console.print(Text(visible(str(error))), soft_wrap=True)
            away = str(error)
