"""The report of a run: one picture, and one page that holds everything and asks nothing of the network.

It draws and writes what `summary.py` has read; it computes no figure of its own but smoothing.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rl_swarm.runs.examples import Example
from rl_swarm.runs.following import SMOOTHED_ROUNDS
from rl_swarm.runs.record import Evaluated
from rl_swarm.runs.summary import Summary
from rl_swarm.show.card import percent, reward, rounds_named
from rl_swarm.show.page import make_page
from rl_swarm.text import visible

if TYPE_CHECKING:  # drawing is the only heavy thing here, and imported where it is done
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE, PICTURE = "report.html", "report.png"
MOST_COLOURS = 8
LONGEST_LABEL = 16  # characters of a name
MOST_CELLS = 12  # nodes up to which the counts are written into the matrix

CALM: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "font.size": 10.0,
    "text.parse_math": False,  # a '$' in a name is a '$'
}


@dataclass(frozen=True)
class Shades:
    paper: str
    ink: str
    faint: str
    grid: str
    first: str  # the mean, and what the verifier reads
    second: str  # style-blind
    nodes: tuple[str, ...]


LIGHT = Shades(
    paper="#ffffff",
    ink="#1f2328",
    faint="#6b7280",
    grid="#e5e7eb",
    first="#0b6bcb",
    second="#c2570c",
    nodes=("#e69f00", "#009e73", "#cc79a7", "#7a7fd1", "#56b4e9", "#d55e00", "#8c8c00", "#7f7f7f"),
)
DARK = Shades(
    paper="#14171c",
    ink="#e6e8eb",
    faint="#9aa3af",
    grid="#2b313a",
    first="#58b0ff",
    second="#ff9a4d",
    nodes=("#d9a028", "#2fc79a", "#e79ac6", "#a3a7ee", "#7cc6f0", "#ff8a50", "#c3c34a", "#a5a5a5"),
)


def make_report(summary: Summary, examples: Sequence[Example]) -> dict[str, bytes]:
    """The picture and the page, by name of file."""
    light, dark = draw(summary, LIGHT), draw(summary, DARK)
    return {PICTURE: light, PAGE: make_page(summary, examples, light, dark).encode()}


def draw(summary: Summary, shades: Shades) -> bytes:
    """The picture as PNG: rewards above, held-out accuracy and who learnt from whom below."""
    from matplotlib import rc_context

    with rc_context(style(shades)):
        figure = empty_figure(10.5, 7.8, shades)
        grid = figure.add_gridspec(2, 2, height_ratios=(1.15, 1), wspace=0.06, hspace=0.08)
        _draw_rewards(figure.add_subplot(grid[0, :]), summary, shades)
        _draw_held_out(figure.add_subplot(grid[1, 0]), summary.evaluations, shades)
        _draw_uses(figure.add_subplot(grid[1, 1]), summary, shades)
        return as_png(figure, shades)


def empty_figure(width: float, height: float, shades: Shades) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, facecolor=shades.paper, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: "Figure", shades: Shades) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor=shades.paper, metadata={"Software": None})
    return file.getvalue()


def style(shades: Shades) -> dict[Any, Any]:
    """What all pictures look like."""
    return {
        **CALM,
        "axes.edgecolor": shades.grid,
        "axes.facecolor": shades.paper,
        "axes.labelcolor": shades.faint,
        "grid.color": shades.grid,
        "text.color": shades.ink,
        "xtick.color": shades.faint,
        "ytick.color": shades.faint,
    }


def smoothed(points: Sequence[tuple[int, float]], count: int = SMOOTHED_ROUNDS) -> list[tuple[int, float]]:
    """Each value as the mean of itself and those before it, `count` in all."""
    values = [value for _, value in points]
    return [(number, fmean(values[max(0, place + 1 - count) : place + 1])) for place, (number, _) in enumerate(points)]


def label(text: str) -> str:
    """A name that the font has, and that neither fills the picture nor is left out of a legend for its underscore."""
    plain = visible(text).encode("ascii", "backslashreplace").decode()
    plain = plain if len(plain) <= LONGEST_LABEL else f"{plain[: LONGEST_LABEL - 1]}…"
    return f" {plain}" if plain.startswith("_") else plain


def _draw_rewards(axes: "Axes", summary: Summary, shades: Shades) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(f"Reward of the nodes' own completions, mean of {SMOOTHED_ROUNDS} rounds")
    for place, (node_id, points) in enumerate(summary.rewards.items()):
        colour = shades.nodes[place] if len(summary.rewards) <= MOST_COLOURS else shades.faint
        name = label(node_id) if len(summary.rewards) <= MOST_COLOURS else None
        axes.plot(*_columns(smoothed(points)), color=colour, linewidth=1.1, alpha=0.85, label=name)
    axes.plot(*_columns(summary.mean_rewards), ".", color=shades.first, alpha=0.4, markersize=4, label="all nodes, each round")
    axes.plot(*_columns(smoothed(summary.mean_rewards)), color=shades.first, linewidth=2.8, label="all nodes")
    low, high = axes.get_ylim()
    axes.set_ylim(0.0 if min([0.0, *(value for _, value in summary.mean_rewards)]) == 0 else low, high + 0.12 * (high - low))
    compared = ((summary.first_rounds, summary.reward.before, "left"), (summary.last_rounds, summary.reward.after, "right"))
    for numbers, value, side in compared:
        if numbers:
            begin, end = numbers[0] - 0.5, numbers[-1] + 0.5
            axes.axvspan(begin, end, color=shades.first, alpha=0.09, linewidth=0)
            said = f" {rounds_named(numbers)}: {reward(value)} "
            axes.text(begin if side == "left" else end, 0.98, said, transform=axes.get_xaxis_transform(), ha=side, va="top")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("round")
    axes.grid(axis="y")
    axes.margins(x=0.01)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0.0, 0.94), ncols=2, fontsize=9, facecolor=shades.paper, edgecolor="none", framealpha=0.6
    )


def _draw_held_out(axes: "Axes", evaluations: Sequence[Evaluated], shades: Shades) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title("Held-out accuracy, mean of the nodes")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="y")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    if not evaluations:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=shades.faint)
        return
    numbers = [each.round for each in evaluations]
    seen, known = [each.held_out for each in evaluations], [each.held_out_style_blind for each in evaluations]
    lines = [
        ("style-blind: right in whatever form", known, seen, shades.second, "s--"),
        ("as the verifier reads it", seen, known, shades.first, "o-"),
    ]
    for name, values, others, colour, style in lines:
        axes.plot(numbers, values, style, color=colour, linewidth=2, markersize=5, label=name, clip_on=False)
        for place in sorted({0, len(numbers) - 1}):
            above = values[place] > others[place] or (values[place] == others[place] and values is known)
            _name_point(axes, numbers[place], values[place], colour, above=above, first=place == 0)
    axes.legend(loc="upper left", frameon=False, fontsize=9)


def _name_point(axes: "Axes", number: int, value: float, colour: str, above: bool, first: bool) -> None:
    """Write a value beside its point, away from the other line, and a low one never below the axis."""
    low = value < 0.1
    shift = (14 if low and first else 0, 2 if low else 7 if above else -7)
    side, height = "left" if first else "right", "bottom" if above or low else "top"
    axes.annotate(percent(value), (number, value), shift, textcoords="offset points", color=colour, ha=side, va=height)


def _draw_uses(axes: "Axes", summary: Summary, shades: Shades) -> None:
    """Who learnt from whom: a row for each learner, a column for each author; on the diagonal what a node used of its own."""
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_title("Rollouts that each node trained on, by author")
    names = [node.node_id for node in summary.nodes]
    counts = [
        [float("nan") if learner == author else summary.uses.get((learner, author), 0) for author in names] for learner in names
    ]
    if not names:
        return
    most = max((count for row in counts for count in row if count == count), default=0)
    shading = LinearSegmentedColormap.from_list("uses", (shades.paper, shades.first))
    axes.imshow(counts, cmap=shading, vmin=0, vmax=max(1, 2 * most), aspect="auto")  # half of the scale: figures stay readable
    axes.set_xticks([place + 0.5 for place in range(len(names) - 1)], minor=True)
    axes.set_yticks([place + 0.5 for place in range(len(names) - 1)], minor=True)
    axes.grid(which="minor", color=shades.paper, linewidth=3)
    long = sum(len(label(name)) for name in names) > 50
    axes.set_xticks(range(len(names)), [label(name) for name in names], rotation=90 if long else 0)
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.set_xlabel("author")
    axes.set_ylabel("learner")
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    if len(names) > MOST_CELLS:
        axes.tick_params(labelbottom=False, labelleft=False)
        return
    for row, node in enumerate(summary.nodes):
        for column, count in enumerate(counts[row]):
            own = row == column
            text = f"own {node.own_used}" if own else f"{count:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=shades.faint if own else shades.ink)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [number for number, _ in points], [value for _, value in points]
