"""What people see of a running swarm in a terminal: one renderer for every command.

Nothing that a model or a peer wrote takes effect here: it is shown as plain text with its control characters spelt out.
"""

import io
import re
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_swarm.clock import Clock, SystemClock
from rl_swarm.errors import StoreAway
from rl_swarm.runs.following import SMOOTHED_ROUNDS, Following, Moment, NodeMoment, Sample
from rl_swarm.runs.progress import ExperimentStatus
from rl_swarm.runs.validate import Finding
from rl_swarm.text import visible

REFRESH_SECONDS = 2.0
FRAME_SECONDS = 0.4  # between two pictures of the live view; each costs about 15 ms of a core that the nodes could use
LINE_SECONDS = 5.0  # between two lines where there is no terminal
LONGEST_SHOWN = 2000  # characters of a text that are looked at
SAMPLE_LINES = 2  # of a question, and of its completion
LEAST_CURVE, MOST_CURVE = 3, 12  # lines of the reward curve
BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS = {"since": 72, "round": 30, "reward": 40, "own": 50, "peers'": 50, "tokens/s": 66}  # and the width that each asks for
MEASURE = Console(file=io.StringIO())  # wrapping a text asks for a console, whichever
LEGEND = f"reward: mean of the last {SMOOTHED_ROUNDS} rounds; own, peers': rollouts used, of I and J"


def ago(moment: float | None, now: float) -> str:
    """How long ago, for people; clocks of two machines may disagree, so it is never negative."""
    if moment is None:
        return "–"
    return duration(now - moment)


def duration(seconds: float) -> str:
    """For people, and never negative."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def one_line(text: str) -> str:
    """A text of any length and shape as a line that can be shown."""
    return visible(re.sub(r"\s*\n\s*", " ⏎ ", text.strip()[:LONGEST_SHOWN]))


def status_view(status: ExperimentStatus, now: float) -> Group:
    """The experiment in one line, its nodes in a table, and who does not listen to whom."""
    head = Text(visible(f"{status.experiment}: {status.status}"))
    if status.round is not None:
        head.append(f", round {status.round}")
    if status.opened_at is not None:
        head.append(f", open for {ago(status.opened_at, now)}")
    table = Table()
    for column in ("node", "role", "doing", "since", "round", "reward", "last sign"):
        table.add_column(column, justify="right" if column in {"since", "round", "reward", "last sign"} else "left")
    for node in status.nodes:
        table.add_row(
            Text(visible(node.node_id)),
            Text(visible(node.role)),
            Text(visible(node.doing)),
            ago(node.since, now),
            "–" if node.round is None else str(node.round),
            "–" if node.reward is None else f"{node.reward:.3f}",
            ago(node.last_sign, now),
        )
    return Group(head, table, *(Text(line) for line in [*_left_out(status), *_twins(status), *_mutes(status)]))


def _left_out(status: ExperimentStatus) -> list[str]:
    few = f"and {status.left_out} more registered, which were not looked at: these here show the most signs of life"
    return [few] if status.left_out else []


def _twins(status: ExperimentStatus) -> list[str]:
    return [
        visible(f"{node.node_id} says that another process uses its name: stop one of the two, or give it another NODE_ID")
        for node in status.nodes
        if node.name_in_use
    ]


def _mutes(status: ExperimentStatus) -> list[str]:
    return [
        visible(f"{node.node_id} has muted {mute.peer} until round {mute.until}: bad files, the last refused as {mute.reason}")
        for node in status.nodes
        for mute in node.muted
    ]


def findings_view(findings: list[Finding]) -> Table:
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    table = Table("check", "result", "found")
    for finding in findings:
        table.add_row(finding.check, Text(finding.status, style=colours[finding.status]), Text(visible(finding.detail)))
    return table


def watch(read: Callable[[], ExperimentStatus], console: Console | None = None) -> None:
    """Show the status again and again until Ctrl-C; while the store is away, what it was and why nothing is new."""
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
    """Shows a run while it goes on: a picture that changes on a terminal, a plain line every few seconds elsewhere.

    A context manager; whoever runs the swarm calls `tick` as often as it likes.
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
        """A line that stays, above the picture."""
        self.console.print(Text(visible(line)), soft_wrap=True)

    def _show(self) -> None:
        try:
            moment = self.following.look()
        except StoreAway as away:  # the swarm goes on without it, and so does whoever watches
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
    recent = [reward for _, reward in moment.curve[-SMOOTHED_ROUNDS:]]
    parts = [_rounds(moment)]
    if recent:
        parts.append(f"reward {sum(recent) / len(recent):.3f} (mean of the last {len(recent)} rounds)")
    return ", ".join([*parts, _time_left(moment, now)])


def live_frame(moment: Moment, now: float, width: int, height: int) -> Group:
    """The whole picture, at most as high as the terminal: what does not fit is left out, completions first, then the curve."""
    room = height - 1 - 5  # header and gap, head and legend of the table; the last line is the cursor's
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
    title = Text.assemble(("RL Swarm ", "bold"), visible(moment.experiment), f"  {_rounds(moment)}")
    done = min(moment.rounds_done, moment.max_rounds)
    bar = ProgressBar(total=moment.max_rounds, completed=done, complete_style="cyan", finished_style="green")
    grid.add_row(title, bar, Text(_time_left(moment, now)))
    return grid


def _rounds(moment: Moment) -> str:
    return f"{moment.rounds_done} of {moment.max_rounds} rounds"


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
        state = Text(one_line(node.doing), style=_style(node))
        figures = _figures(node, now)
        table.add_row(Text(visible(node.node_id)), state, *(Text(figures.get(column, "")) for column in columns))
    return table


def _style(node: NodeMoment) -> str:
    if node.doing.startswith("failed"):
        return "red"
    return "dim" if node.doing.startswith(("waiting", "registered", "complete", "stopped")) else "green"


def _figures(node: NodeMoment, now: float) -> dict[str, str]:
    figures = {} if node.doing == "complete" else {"since": ago(node.since, now)}
    last = node.last
    if last is not None and node.reward is not None:
        figures |= {
            "round": str(last.round),
            "reward": f"{node.reward:.3f}",
            "own": f"{last.own_used}/{last.own_wanted}",
            "peers'": f"{last.external_used}/{last.external_wanted}",
            "tokens/s": f"{last.tokens_per_s:.0f}",
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
    """A curve over the rounds 0 to `last` and the values 0 to `top`, filled below, in eighths of a character's height."""
    heights = [round(8 * lines * min(1.0, max(0.0, value / top))) for value in _at_columns(points, last, columns)]
    return [
        "".join(BLOCKS[min(8, max(0, height - 8 * line))] for height in heights).ljust(columns) for line in reversed(range(lines))
    ]


def _at_columns(points: Sequence[tuple[int, float]], last: int, columns: int) -> list[float]:
    """The value at each column up to the newest round: the mean of the rounds in it, or between two rounds on the line."""
    values: list[float] = []
    place = 0
    for column in range(columns):
        begin, end = ((column + half) * last / max(1, columns - 1) for half in (-0.5, 0.5))
        inside = []
        while place < len(points) and points[place][0] < end:
            inside.append(points[place])
            place += 1
        within = [value for number, value in inside if number >= begin]
        if within:
            values.append(sum(within) / len(within))
        elif place < len(points):
            before, after = points[place - 1] if place else points[0], points[place]
            share = ((begin + end) / 2 - before[0]) / max(1, after[0] - before[0])
            values.append(before[1] + min(1.0, max(0.0, share)) * (after[1] - before[1]))
        else:
            break
    return values


def _samples(moment: Moment, width: int) -> Table:
    """A good and a wrong completion side by side, always as high."""
    grid = Table.grid(padding=(0, 2), expand=True)
    for _ in range(2):
        grid.add_column(ratio=1)
    wide = (width - 2) // 2
    grid.add_row(_sample("good", "green", moment.good, wide), _sample("wrong", "red", moment.wrong, wide))
    return grid


def _sample(kind: str, style: str, sample: Sample | None, width: int) -> Group:
    if sample is None:
        return Group(Text(f"no {kind} completion yet", style="dim"), *[Text()] * (2 * SAMPLE_LINES))
    title = Text.assemble((kind, f"bold {style}"), f"  reward {sample.reward:.2f}  {visible(sample.node_id)}, round {sample.round}")
    title.truncate(width, overflow="ellipsis")
    return Group(title, *_cut(sample.prompt, width, "dim"), *_cut(sample.text or "(nothing)", width, style))


def _cut(text: str, width: int, style: str) -> list[Text]:
    """The first lines of a text, always SAMPLE_LINES of them."""
    shown = Text(one_line(text), style=style)
    shown.truncate(SAMPLE_LINES * (width - 4), overflow="ellipsis")
    wrapped = list(shown.wrap(MEASURE, width))[:SAMPLE_LINES]
    return wrapped + [Text()] * (SAMPLE_LINES - len(wrapped))
