"""Draw pictures that belong together: colours for light and dark pages, axes, labels, PNG files.

The only module that knows how matplotlib is set up. It imports matplotlib inside functions, since that takes long.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from rl_swarm.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_LABEL = 16  # characters of a name
SIGNS = "→·–…"  # of our own, which the font has
LONGEST_LINE = 110  # characters above and below a sheet
COLOURS = 256  # of a picture, which makes its file a third as large
MOST_POINTS = 1000  # of a line
LABEL_HEIGHT = 0.065  # of an axis: a line of letters
WIDTH = 5.2  # inches of a panel: its letters can be read on a phone


@dataclass(frozen=True)
class Shades:
    """The colours of pages and pictures."""

    paper: str
    ink: str
    faint: str
    grid: str
    edge: str  # of boxes that one can type or click into
    tint: str  # behind boxes
    first: str  # the mean, and accuracy as the verifier reads
    second: str  # accuracy in any form
    good: str
    wrong: str
    nodes: tuple[str, ...]


LIGHT = Shades(
    paper="#ffffff",
    ink="#1f2328",
    faint="#5b6270",
    grid="#e5e7eb",
    edge="#8a919e",
    tint="#f5f7fa",
    first="#0b6bcb",
    second="#b04a06",
    good="#137a3b",
    wrong="#b3261e",
    nodes=("#e69f00", "#009e73", "#cc79a7", "#7a7fd1", "#56b4e9", "#d55e00", "#8c8c00", "#7f7f7f"),
)
DARK = Shades(
    paper="#14171c",
    ink="#e6e8eb",
    faint="#9aa3af",
    grid="#2b313a",
    edge="#6d7684",
    tint="#1b1f26",
    first="#58b0ff",
    second="#ff9a4d",
    good="#5fd38d",
    wrong="#ff8a80",
    nodes=("#d9a028", "#2fc79a", "#e79ac6", "#a3a7ee", "#7cc6f0", "#ff8a50", "#c3c34a", "#a5a5a5"),
)


@dataclass(frozen=True)
class Picture:
    """One drawing as PNG, for light and for dark pages."""

    light: bytes
    dark: bytes


@dataclass(frozen=True)
class Panel:
    """One plot. A page shows each by itself, so that a phone puts one below the other; a sheet shows several in one picture."""

    draw: Callable[["Axes", Shades], None]
    alt: str
    caption: str = ""
    height: float = 3.5  # inches; all are equally wide

    @cached_property
    def picture(self) -> Picture:
        light, dark = (_png([[self]], shades, dots=150) for shades in (LIGHT, DARK))
        return Picture(light, dark)


def sheet(title: str, below: str, rows: Sequence[Sequence[Panel]]) -> bytes:
    """One PNG of all panels, two in a row at most, under a title and above a line that says what it is of."""
    return _png(rows, LIGHT, title=label(title, LONGEST_LINE), below=label(below, LONGEST_LINE))


def in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Two panels a row."""
    return [panels[place : place + 2] for place in range(0, len(panels), 2)]


def _png(rows: Sequence[Sequence[Panel]], shades: Shades, dots: int = 120, title: str = "", below: str = "") -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    style = {
        "axes.edgecolor": shades.grid,
        "axes.facecolor": shades.paper,
        "axes.labelcolor": shades.faint,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 11.5,
        "font.size": 10.0,
        "grid.color": shades.grid,
        "text.color": shades.ink,
        "text.parse_math": False,  # a '$' in a name is a '$'
        "xtick.color": shades.faint,
        "ytick.color": shades.faint,
    }
    columns, heights = 2 if title else 1, [max(panel.height for panel in row) for row in rows]
    size = (WIDTH * columns, sum(heights) + 0.7 * bool(title))
    with rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=size, dpi=dots, facecolor=shades.paper, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold")
            figure.supxlabel(below, x=0.01, ha="left", fontsize=9.5, color=shades.faint)
        grid = figure.add_gridspec(len(rows), columns, height_ratios=heights, wspace=0.06, hspace=0.08)
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                panel.draw(figure.add_subplot(grid[row, column if len(panels) > 1 else slice(None)]), shades)
        drawn, file = io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, format="rgba", facecolor=shades.paper)
    pixels = Image.frombytes("RGBA", canvas.get_width_height(), drawn.getvalue()).convert("RGB")
    pixels.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(file, format="png", optimize=True)
    return file.getvalue()


def round_axis(axes: "Axes", ticks: int = 8) -> None:
    """Make the horizontal axis one of rounds: whole numbers, `ticks` at most."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("round")


def label(text: str, most: int = LONGEST_LABEL) -> str:
    """Shorten a name and keep to the letters of the font. A legend leaves out names that begin with an underscore."""
    plain = "".join(
        each if each.isascii() or each in SIGNS else each.encode("ascii", "backslashreplace").decode() for each in visible(text)
    )
    plain = plain if len(plain) <= most else f"{plain[: most - 1]}…"
    return f" {plain}" if plain.startswith("_") else plain


def smooth(values: Sequence[float], count: int) -> list[float]:
    """Replace each value by the mean of itself and those before it, `count` in all."""
    return [fmean(values[max(0, place + 1 - count) : place + 1]) for place in range(len(values))]


def thin(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Replace neighbouring points by their mean where there are more than a picture can show."""
    step = -(-len(points) // MOST_POINTS) or 1
    parts = (points[place : place + step] for place in range(0, len(points), step))
    return [(fmean(number for number, _ in part), fmean(value for _, value in part)) for part in parts]


def with_gaps(points: Sequence[tuple[float, float]], most: float) -> list[tuple[float, float]]:
    """Interrupt a line where more than `most` rounds are missing between two points that are otherwise evenly spaced."""
    steps = sorted(after - before for (before, _), (after, _) in pairwise(points))
    usual = steps[len(steps) // 2] if steps else 0.0
    found = list(points[:1])
    for (before, _), (after, value) in pairwise(points):
        found += [(before, math.nan)] if after - before > usual + most else []
        found.append((after, value))
    return found


def apart(values: Sequence[float], least: float = LABEL_HEIGHT) -> list[float]:
    """Heights for labels of these values on an axis from 0 to 1: each as near as it can be to its own, and none on another."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    heights = [values[place] for place in order]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + least)
    top = 1.0
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], top)
        top = heights[place] - least
    return [heights[order.index(place)] for place in range(len(values))]


def legend_below(axes: "Axes") -> None:
    """Put the legend under the axis, where it covers no line."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are drawn in a figure"
    below_label = axes.transAxes + ScaledTranslation(0, -0.5, figure.dpi_scale_trans)  # inches
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0.0, 0.0),
            bbox_transform=below_label,
            ncols=3,  # as many as fit a panel by itself
            columnspacing=1.2,
            handlelength=1.6,
            fontsize=8.5,
            frameon=False,
            borderaxespad=0.0,
        )
