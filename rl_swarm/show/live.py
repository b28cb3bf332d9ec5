"""Show a running swarm in a terminal. Texts of models and peers are plain text here, with control characters spelt out."""

import io
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_swarm.clock import Clock, SystemClock
from rl_swarm.errors import StoreAway
from rl_swarm.runs.examples import NOT_READ, PARTLY, RIGHT, WRONG, Answered
from rl_swarm.runs.following import MEAN_ROUNDS, Following, Moment, NodeMoment
from rl_swarm.runs.progress import ExperimentStatus
from rl_swarm.runs.validate import Finding
from rl_swarm.show.formats import ago, duration, flat, number
from rl_swarm.text import visible

REFRESH_SECONDS = 2.0
FRAME_SECONDS = 0.4  # between two frames; each costs about 15 ms of a core that the nodes could use
LINE_SECONDS = 5.0  # between two lines without a terminal
SAMPLE_LINES = 2  # of a question, and of its completion
LEAST_CURVE, MOST_CURVE = 3, 12  # lines of the reward curve
VERDICTS = {RIGHT: "green", NOT_READ: "yellow", PARTLY: "yellow", WRONG: "red"}
BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS = {"since": 72, "round": 30, "reward": 40, "own": 50, "peers'": 50, "tokens/s": 66}  # the width at which each is shown
MEASURE = Console(file=io.StringIO())  # wrapping a text needs any console
LEGEND = f"reward: mean of the last {MEAN_ROUNDS} rounds; own, peers': rollouts used, of I and J"


def status_view(status: ExperimentStatus, now: float) -> Group:
    """The experiment in one line, its nodes in a table, then a line for everything that needs attention."""
    head = f"{status.experiment}: {status.status}"
    if status.round is not None:
        head += f", round {status.round}"
    if status.opened_at is not None:
        head += f", open for {ago(status.opened_at, now)}"
    table = Table("node", "role", "doing")
    for column in ("since", "round", "reward", "last sign"):
        table.add_column(column, justify="right")
    for node in status.nodes:
        said = (Text(visible(part)) for part in (node.node_id, node.role, node.doing))
        table.add_row(*said, ago(node.since, now), number(node.round, 0), number(node.reward), ago(node.last_sign, now))
    return Group(Text(visible(head)), table, *(Text(visible(line)) for line in _remarks(status)))


def _remarks(status: ExperimentStatus) -> Iterator[str]:
    if status.left_out:
        yield f"and {status.left_out} more registered, which were not looked at: those above show the most signs of life"
    for node in status.nodes:
        if node.name_in_use:
            yield f"{node.node_id} says that another process uses its name: stop one of the two, or give it another NODE_ID"
    for node in status.nodes:
        for mute in node.muted:
            yield f"{node.node_id} has muted {mute.peer} until round {mute.until}: bad files, the last refused as {mute.reason}"


def findings_view(findings: list[Finding]) -> Table:
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    table = Table("check", "result", "found")
    for finding in findings:
        table.add_row(finding.check, Text(finding.status, style=colours[finding.status]), Text(visible(finding.detail)))
    return table


def watch(read: Callable[[], ExperimentStatus], console: Console | None = None) -> None:
    """Show the status again and again until Ctrl-C; while the store is away, the last one and the reason."""
    status = read()
    with Live(status_view(status, time.time()), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(REFRESH_SECONDS)
                away = ""
                try:
                    status = read()
                except StoreAway as error:
                    away = f"{error}; this is what was there before"
                live.update(Group(status_view(status, time.time()), Text(visible(away))), refresh=True)
        except KeyboardInterrupt:
            return


class LiveView:
    """Show a run while it goes on: a changing frame on a terminal, a plain line every few seconds elsewhere.

    A context manager. Call `tick` as often as you like.
    """

    def __init__(self, following: Following, console: Console, clock: Clock | None = None) -> None:
        self.following = following
        self.console = console
        self.clock = clock or SystemClock()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._next = 0.0
        self._said = ""

    def __enter__(self) -> "LiveView":
        if self.console.is_interactive:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._show()
        self._live.stop()

    def tick(self) -> None:
        now = self.clock.monotonic()
        if now >= self._next:
            self._next = now + (FRAME_SECONDS if self.console.is_interactive else LINE_SECONDS)
            self._show()

    def say(self, line: str) -> None:
        """Print a line that stays, above the frame."""
        self.console.print(Text(visible(line)), soft_wrap=True)

    def _show(self) -> None:
        try:
            moment = self.following.look()
        except StoreAway as away:  # the swarm goes on, and so does its view
            self.say(str(away))
            return
        now = self.clock.wall()
        if self.console.is_interactive:
            self._live.update(live_frame(moment, now, self.console.width, self.console.height), refresh=True)
        elif (line := plain_line(moment, now)) != self._said:
            self._said = line
            self.say(line)


def plain_line(moment: Moment, now: float) -> str:
    """The run in one line."""
    recent = [reward for _, reward in moment.curve[-MEAN_ROUNDS:]]
    reward = f", reward {fmean(recent):.3f} (mean of the last {len(recent)} rounds)" if recent else ""
    return f"{moment.rounds_done} of {moment.max_rounds} rounds{reward}, {_time_left(moment, now)}"


def live_frame(moment: Moment, now: float, width: int, height: int) -> Group:
    """The whole frame, at most as high as the terminal. Completions are the first to be left out, then the curve."""
    room = height - 1 - 5  # the last line is the cursor's; header, gap, and three of the table
    shown = moment.nodes if len(moment.nodes) <= room else moment.nodes[: max(1, room - 1)]
    parts: list[RenderableType] = [_header(moment, now), Text(), _nodes_table(shown, now, width)]
    room -= len(shown)
    if len(shown) < len(moment.nodes):
        parts.append(Text(f"and {len(moment.nodes) - len(shown)} more", style="dim"))
        room -= 1
    parts.append(Text(LEGEND, style="dim", no_wrap=True, overflow="ellipsis"))
    samples = 2 * SAMPLE_LINES + 2
    with_samples = room >= samples + LEAST_CURVE + 3
    lines = min(MOST_CURVE, room - 3 - (samples if with_samples else 0))
    if lines >= LEAST_CURVE:
        parts += [Text(), *_curve(moment, width, lines)]
    if with_samples:
        parts += [Text(), _samples(moment, width)]
    return Group(*parts)


def _header(moment: Moment, now: float) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, 1, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    title = Text.assemble(
        ("RL Swarm ", "bold"), visible(moment.experiment), f"  {moment.rounds_done} of {moment.max_rounds} rounds"
    )
    done = min(moment.rounds_done, moment.max_rounds)
    bar = ProgressBar(total=moment.max_rounds, completed=done, complete_style="cyan", finished_style="green")
    grid.add_row(title, bar, Text(_time_left(moment, now)))
    return grid


def _time_left(moment: Moment, now: float) -> str:
    if moment.complete:
        return "complete"
    left = moment.seconds_left(now)
    if left is None:
        return "starting" if not moment.rounds_done else "measuring the pace"
    return f"{duration(round(left))} left"


def _nodes_table(nodes: Sequence[NodeMoment], now: float, width: int) -> Table:
    columns = [title for title, least_width in COLUMNS.items() if width >= least_width]
    table = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("node", no_wrap=True, overflow="ellipsis")
    table.add_column("state", ratio=1, no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for node in nodes:
        idle = node.doing.startswith(("waiting", "registered", "complete", "stopped"))
        style = "red" if node.doing.startswith("failed") else "dim" if idle else "green"
        figures = _figures(node, now)
        table.add_row(
            Text(visible(node.node_id)), Text(flat(node.doing), style=style), *(figures.get(name, "") for name in columns)
        )
    return table


def _figures(node: NodeMoment, now: float) -> dict[str, str]:
    figures = {} if node.doing == "complete" else {"since": ago(node.since, now)}
    if node.last is not None:
        figures |= {
            "round": str(node.last.round),
            "reward": number(node.reward),
            "own": f"{node.last.own_used}/{node.last.own_wanted}",
            "peers'": f"{node.last.external_used}/{node.last.external_wanted}",
            "tokens/s": f"{node.last.tokens_per_s:.0f}",
        }
    return figures


def _curve(moment: Moment, width: int, lines: int) -> list[RenderableType]:
    newest = f", now {moment.curve[-1][1]:.3f}" if moment.curve else ""
    title = Text(f"reward, mean of the nodes' own completions round by round{newest}", no_wrap=True, overflow="ellipsis")
    last = max([moment.max_rounds, *(number + 1 for number, _ in moment.curve[-1:])]) - 1
    top = max([0.1, *(reward for _, reward in moment.curve)])
    columns = max(8, width - 8)
    labels = [f"{top:6.2f} ", *[" " * 7] * (lines - 2), f"{0:6.2f} "]
    drawn = zip(labels, area(moment.curve, last, top, columns, lines), strict=True)
    axis = f"{'':7}round 0{last:>{columns - 7}}"
    return [title, *(Text.assemble((label, "dim"), (line, "cyan")) for label, line in drawn), Text(axis, style="dim")]


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


def _samples(moment: Moment, width: int) -> Table:
    """A completion with the full reward and one with less, side by side, always of the same height."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    wide = (width - 2) // 2
    grid.add_row(_sample(moment.good, RIGHT, wide), _sample(moment.other, WRONG, wide))
    return grid


def _sample(shown: Answered | None, wanted: str, width: int) -> Group:
    if shown is None:
        return Group(Text(f"no {wanted} completion yet", style="dim"), *[Text()] * (2 * SAMPLE_LINES))
    style = VERDICTS[shown.verdict]
    title = Text.assemble((shown.verdict, f"bold {style}"), f"  reward {number(shown.reward, 2)}  {visible(shown.by)}")
    title.truncate(width, overflow="ellipsis")
    return Group(title, *_cut(shown.prompt, width, "dim"), *_cut(shown.text or "(nothing)", width, style))


def _cut(text: str, width: int, style: str) -> list[Text]:
    """The beginning of a text in exactly SAMPLE_LINES lines."""
    shown = Text(flat(text), style=style)
    shown.truncate(SAMPLE_LINES * (width - 4), overflow="ellipsis")
    wrapped = list(shown.wrap(MEASURE, width))[:SAMPLE_LINES]
    return wrapped + [Text()] * (SAMPLE_LINES - len(wrapped))
