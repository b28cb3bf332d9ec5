"""Show a run in a terminal or a notebook, once or while it goes on. What models and peers write is plain text here, with control
characters spelt out.
"""

import io
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_swarm.clock import Clock, SystemClock
from rl_swarm.errors import StoreAway
from rl_swarm.runs.examples import NOT_READ, PARTLY, RIGHT, WRONG, Answered
from rl_swarm.runs.following import MEAN_ROUNDS, Following, Moment, NodeMoment
from rl_swarm.show import cell
from rl_swarm.show.cell import CellScreen
from rl_swarm.show.formats import EMPTY, ago, duration, flat, number, roughly
from rl_swarm.show.tables import make_table
from rl_swarm.text import counted, visible

FRAME_SECONDS = 0.4  # between two frames of nodes on this machine; each costs about 15 ms of a core that they could use
WATCH_SECONDS = 2.0  # between two frames of a run elsewhere
LINE_SECONDS, SLOWEST_LINES = 5.0, 30.0  # between two lines without a terminal: in the first minutes, and later
NOTEBOOK_LINES = 32
SMALL = 12  # lines of a terminal on which nodes are more important than words about them
SAMPLE_LINES, TALL = 2, 36  # of a question, and of its completion; one more on a tall terminal
LEAST_CURVE, MOST_CURVE = 3, 12  # lines of the reward curve
STATE_SHARE = 0.28  # of the width, for what a node is doing, before any figure is shown
LEAST_FIGURE = 6  # columns of a figure, so that columns do not come and go while figures change
MOST_REMARKS = 4
BLOCKS = " ▁▂▃▄▅▆▇█"
LEGEND = f"reward: mean of {MEAN_ROUNDS} rounds; own, external: rollouts learnt from, of I and J"
VERDICTS = {RIGHT: "green", NOT_READ: "yellow", PARTLY: "yellow", WRONG: "red"}
STYLES = {"silent": "bold yellow", "failed": "bold red", "complete": "bold green", "stopped": "yellow", "waiting": "dim"}
MEASURE = Console(file=io.StringIO())  # wrapping a text needs any console


class LiveView:
    """Show a run while it goes on: a changing frame on a terminal or in a notebook, a plain line every few seconds elsewhere.

    A context manager. Call `tick` as often as you like. Nodes that are `starting` on this machine, with their
    roles, are shown from the beginning.
    """

    def __init__(
        self,
        following: Following,
        console: Console,
        clock: Clock | None = None,
        starting: Mapping[str, str] | None = None,
        frame_seconds: float = FRAME_SECONDS,
        hint: str = "",
    ) -> None:
        self.following = following
        self.console = console
        self.clock = clock or SystemClock()
        self.moment: Moment | None = None
        self._began = self.clock.wall()
        self._starting = starting or {}
        self._drawn = console.is_interactive or console.is_jupyter
        self._frame_seconds = frame_seconds
        self._hint = hint
        self._live = (
            CellScreen()
            if console.is_jupyter
            else Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        )
        self._next = 0.0
        self._away = self._said = ""

    def __enter__(self) -> "LiveView":
        if self._drawn:
            self._live.start()
        elif self._hint:
            self.say(self._hint)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def tick(self) -> None:
        now = self.clock.monotonic()
        if now >= self._next:
            self.show()
            pause = min(SLOWEST_LINES, LINE_SECONDS + (self.clock.wall() - self._began) / 20)
            self._next = now + (self._frame_seconds if self._drawn else pause)

    def say(self, line: str) -> None:
        """Print a line that stays, above the frame."""
        self.console.print(Text(visible(line)), soft_wrap=True)

    def look(self) -> None:
        """Look at the run. While the store is away, the moment before counts."""
        try:
            self.moment, self._away = _with_starting(self.following.look(), self._starting, self._began), ""
        except StoreAway as away:
            self._away = f"{away}; this is what was there before" if self.moment else str(away)

    def show(self) -> None:
        self.look()
        now, moment = self.clock.wall(), self.moment
        if self._drawn:
            # A terminal writes ^C after the frame, which must not begin a line.
            width = cell.WIDTH if self.console.is_jupyter else self.console.width - len("^C")
            height = NOTEBOOK_LINES if self.console.is_jupyter else self.console.height
            below = [_one_line(visible(self._away), "yellow")] if self._away else []
            below += [_one_line(self._hint, "dim")] if self._hint else []
            frame = [live_frame(moment, now, width, height - len(below))] if moment else []
            self._live.update(Constrain(Group(*frame, *below), width), refresh=True)
        elif (line := self._away or plain_line(moment, now) if moment else self._away) != self._said:
            self._said = line
            self.say(line)


def watch(following: Following, console: Console, until_ended: bool = False) -> None:
    """Show a run until Ctrl-C, or also until it has ended."""
    hint = f"{'Interrupting the cell' if console.is_jupyter else 'Ctrl-C'} leaves this view, and stops no node"
    with LiveView(following, console, frame_seconds=WATCH_SECONDS, hint=hint) as view, suppress(KeyboardInterrupt):
        while not (until_ended and view.moment and view.moment.status in ("complete", "stopped", "failed")):
            view.tick()
            time.sleep(FRAME_SECONDS)


def _with_starting(moment: Moment, roles: Mapping[str, str], began: float) -> Moment:
    """Add nodes that were started here and have not said a word yet; of a node that comes back, what it said before is old."""
    there = {node.node_id: node for node in moment.nodes}
    new = {
        name: replace(there.get(name, NodeMoment(name, role)), doing="starting", since=began, last_sign=began)
        for name, role in roles.items()
        if name not in there or (there[name].since or 0.0) < began
    }
    nodes = there | new
    status = "running" if new else moment.status
    return replace(moment, status=status, nodes=tuple(nodes[name] for name in sorted(nodes)))


def plain_line(moment: Moment, now: float) -> str:
    """The run in one line."""
    recent = [reward for _, reward in moment.curve[-MEAN_ROUNDS:]]
    reward = [f"reward {number(fmean(recent))} ({_of_last(len(recent))})"] if recent else []
    return ", ".join([_rounds(moment), *reward, *_rates(moment, now), _crowd(moment, now), _time_left(moment, now)])


def status_view(moment: Moment, now: float, width: int) -> Group:
    """All nodes in a table, with their whole states, then a line for everything that needs attention."""
    table: list[RenderableType] = (
        [Text(), _nodes_table(moment.nodes, now, width, whole=True), Text(LEGEND, style="dim")] if moment.nodes else []
    )
    return Group(*_header(moment, now), *table, *(Text(visible(line), style="yellow") for line in _remarks(moment)))


def live_frame(moment: Moment, now: float, width: int, height: int) -> Group:
    """The whole frame, at most as high as the terminal. Completions are the first to be left out, then the curve."""
    remarks = list(_remarks(moment))[:MOST_REMARKS]
    small = height < SMALL
    room = height - 1 - (4 if small else 6) - len(remarks)  # the last line is the cursor's; header, gap, and three of the table
    shown = moment.nodes if len(moment.nodes) <= room else moment.nodes[: max(1, room - 1)]
    gap = [] if small else [Text()]
    parts: list[RenderableType] = [*_header(moment, now), *gap, _nodes_table(shown, now, width)]
    room -= len(shown)
    if len(shown) < len(moment.nodes):
        parts.append(Text(f"and {len(moment.nodes) - len(shown)} more", style="dim"))
        room -= 1
    parts += [] if small else [_one_line(LEGEND, "dim")]
    parts += [_one_line(visible(remark), "yellow") for remark in remarks]
    lines = SAMPLE_LINES + (height >= TALL)
    with_samples = room >= 2 * lines + 2 + LEAST_CURVE + 3
    curve = min(MOST_CURVE, room - 3 - (2 * lines + 2 if with_samples else 0))
    if curve >= LEAST_CURVE:
        parts += [Text(), *_curve(moment, width, curve)]
    if with_samples:
        parts += [Text(), _samples(moment, width, lines)]
    return Group(*parts)


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _header(moment: Moment, now: float) -> list[RenderableType]:
    grid = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    status = Text(visible(moment.status), style=STYLES.get(moment.status, ""))
    title = Text.assemble(("RL Swarm ", "bold"), visible(moment.experiment), ": ", status, f", {_rounds(moment)}")
    bar: RenderableType = Text()
    if moment.max_rounds:
        done = min(moment.rounds_done, moment.max_rounds)
        bar = ProgressBar(total=moment.max_rounds, completed=done, complete_style="cyan", finished_style="green")
    grid.add_row(title, bar, Text(_time_left(moment, now) if moment.status == "running" else ""))
    return [grid, _one_line(", ".join([_crowd(moment, now), *_rates(moment, now)]), "dim")]


def _rounds(moment: Moment) -> str:
    of = f"{moment.rounds_done} of " if moment.max_rounds else ""
    return of + counted(moment.max_rounds or moment.rounds_done, "round")


def _of_last(rounds: int) -> str:
    return f"mean of the last {rounds} rounds" if rounds > 1 else "of the last round"


def _rates(moment: Moment, now: float) -> list[str]:
    pace, speed = [f"{number(moment.pace, 1)} s a round"] if moment.pace is not None else [], moment.tokens_per_s(now)
    return pace + ([f"{speed:.0f} tokens/s"] if speed else [])


def _crowd(moment: Moment, now: float) -> str:
    """Count the workers by what they are doing."""
    kinds = Counter(_kind(node, now) for node in moment.workers)
    if not kinds:
        return "no worker yet"
    return f"{counted(kinds.total(), 'worker')}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))


def _kind(node: NodeMoment, now: float) -> str:
    """What a node is doing, in a word or two that many nodes have in common."""
    if node.silent_seconds(now) is not None:
        return "silent"
    word = next((word for word in ("failed", "complete", "stopped", "stood down", "waiting") if node.doing.startswith(word)), "")
    beginning = node.doing.startswith(("registered", "starting", "loading"))
    return word or (visible(node.doing) if beginning else "at work")


def _time_left(moment: Moment, now: float) -> str:
    if moment.status != "running":
        return visible(moment.status)
    left = moment.seconds_left(now)
    if left is None:
        return "starting" if not moment.rounds_done else "measuring the pace"
    return f"{duration(round(left))} left"


def _nodes_table(nodes: Sequence[NodeMoment], now: float, width: int, whole: bool = False) -> Table:
    """Names are never cut for the sake of figures: those that do not fit are left out, the last first. `whole` wraps states."""
    figures = [_figures(node, now) for node in nodes]
    states = [_state(node, now) for node in nodes]
    names = [visible(node.node_id) for node in nodes]
    name_width = min(max(map(len, names), default=4), width - 10)
    left, columns = width - name_width - 2 - int(STATE_SHARE * width), list[str]()
    for title in figures[0] if figures else ():
        left -= 2 + max(LEAST_FIGURE, len(title), *(len(each[title]) for each in figures))
        if left < 0:
            break
        columns.append(title)
    table = make_table("node", "state", numbers=columns, expand=True)
    table.columns[0].no_wrap, table.columns[1].no_wrap = True, not whole
    table.columns[0].min_width, table.columns[1].ratio = name_width, 1
    table.columns[0].overflow, table.columns[1].overflow = "ellipsis", "fold" if whole else "ellipsis"
    for name, state, each in zip(names, states, figures, strict=True):
        table.add_row(Text(name), state, *(each[title] for title in columns))
    return table


def _state(node: NodeMoment, now: float) -> Text:
    silent, doing = node.silent_seconds(now), flat(node.doing)
    if silent is not None:
        return Text(f"silent for {roughly(silent)}, was {doing}", style=STYLES["silent"])
    kind = _kind(node, now)
    first = node.last is None and node.round is not None and kind == "at work"
    return Text(f"{doing}, first round" if first else doing, style=STYLES.get(kind, "green" if kind == "at work" else "cyan"))


def _figures(node: NodeMoment, now: float) -> Mapping[str, str]:
    """The figures of a node, the most important first."""
    last = node.last
    return {
        "for": ago(node.since, now),
        "round": "" if node.round is None else str(node.round),
        "reward": number(node.reward) if last else "",
        "external": f"{last.external_used}/{last.external_wanted}" if last else "",
        "own": f"{last.own_used}/{last.own_wanted}" if last else "",
        "s/round": number(node.seconds, 1) if last else "",
        "tokens/s": number(last.tokens_per_s, 0) if last else "",
        "last sign": ago(node.last_sign, now),
    }


def _remarks(moment: Moment) -> Iterator[str]:
    if moment.left_out:
        yield f"and {moment.left_out} more registered: made up, or without a sign of life"
    for node in moment.nodes:
        if node.name_in_use:
            yield f"{node.node_id} says that another process uses its name: stop one of the two, or give it another NODE_ID"
    for node in moment.nodes:
        for mute in node.muted:
            yield f"{node.node_id} has muted {mute.peer} until round {mute.until}: bad files, the last refused as {mute.reason}"


def _curve(moment: Moment, width: int, lines: int) -> list[RenderableType]:
    newest = f", now {number(moment.curve[-1][1])}" if moment.curve else ""
    last = max([1, *(number for number, _ in moment.curve[-1:])])  # the header says how many are to come
    top = max([0.1, *(reward for _, reward in moment.curve)])
    columns = max(8, width - 8)
    labels = [f"{top:6.2f} ", *[" " * 7] * (lines - 2), f"{0:6.2f} "]
    drawn = zip(labels, area(moment.curve, last, top, columns, lines), strict=True)
    axis = f"{'':7}round 0{last:>{columns - 7}}"
    return [
        _one_line(f"reward, mean of the nodes' own completions round by round{newest}"),
        *(Text.assemble((label, "dim"), (line, "cyan")) for label, line in drawn),
        Text(axis, style="dim"),
    ]


def area(points: Sequence[tuple[int, float]], last: int, top: float, columns: int, lines: int) -> list[str]:
    """Draw a curve over rounds 0 to `last` and values 0 to `top`, filled below, in eighths of a line."""
    heights = [round(8 * lines * min(1.0, max(0.0, value / top))) for value in _at_columns(points, last, columns)]
    return [
        "".join(BLOCKS[min(8, max(0, height - 8 * line))] for height in heights).ljust(columns) for line in reversed(range(lines))
    ]


def _at_columns(points: Sequence[tuple[int, float]], last: int, columns: int) -> list[float]:
    """The value at each column up to the newest round: the mean of its rounds, or a point on the line between two rounds."""
    numbers, values, step = [number for number, _ in points], list[float](), last / max(1, columns - 1)
    for column in range(columns):
        begin, end = (bisect_left(numbers, (column + half) * step) for half in (-0.5, 0.5))
        if begin < end:
            values.append(fmean(value for _, value in points[begin:end]))
        elif end < len(points):
            (left, low), (right, high) = points[max(0, end - 1)], points[end]
            share = max(0.0, column * step - left) / max(1, right - left)
            values.append(low + share * (high - low))
        else:
            break
    return values


def _samples(moment: Moment, width: int, lines: int) -> Table:
    """A completion with the full reward and one with less, side by side, always of the same height."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    wide = width // 2 - 2
    grid.add_row(_sample(moment.good, RIGHT, wide, lines), _sample(moment.other, WRONG, wide, lines))
    return grid


def _sample(shown: Answered | None, wanted: str, width: int, lines: int) -> Group:
    if shown is None:
        return Group(Text(f"no {wanted} completion yet", style="dim"), *[Text()] * (2 * lines))
    style = VERDICTS[shown.verdict]
    title = Text.assemble((shown.verdict, f"bold {style}"), f"  reward {number(shown.reward, 2)}  {visible(shown.by)}")
    title.truncate(width, overflow="ellipsis")
    asked, answered = ending(flat(shown.prompt), _room(width, lines)), flat(shown.text) or EMPTY
    return Group(title, *_cut(asked, width, lines, "dim"), *_cut(answered, width, lines, style))


def ending(text: str, most: int) -> str:
    """The last letters of a question: what is asked stands at its end, after words that all questions of a task begin with."""
    return text if len(text) <= most else "…" + text[1 - most :]


def _room(width: int, lines: int) -> int:
    """How many letters fit for certain, whatever the length of their words."""
    return lines * (width - 4)


def _cut(text: str, width: int, lines: int, style: str) -> list[Text]:
    """The beginning of a text in exactly so many lines."""
    shown = Text(text, style=style)
    shown.truncate(_room(width, lines), overflow="ellipsis")
    wrapped = list(shown.wrap(MEASURE, width))[:lines]
    return wrapped + [Text()] * (lines - len(wrapped))
