"""Draw pictures that belong together: colours for light and dark pages, axes, labels, PNG files.

The only module that knows how matplotlib is set up. It imports matplotlib inside functions, since that takes long.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rl_swarm.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_LABEL = 16  # characters of a name


@dataclass(frozen=True)
class Shades:
    """The colours of pages and pictures."""

    paper: str
    ink: str
    faint: str
    grid: str
    tint: str  # behind boxes
    first: str  # the mean, and accuracy as the verifier reads
    second: str  # style-blind accuracy
    good: str
    wrong: str
    nodes: tuple[str, ...]


LIGHT = Shades(
    paper="#ffffff",
    ink="#1f2328",
    faint="#6b7280",
    grid="#e5e7eb",
    tint="#f5f7fa",
    first="#0b6bcb",
    second="#c2570c",
    good="#137a3b",
    wrong="#b3261e",
    nodes=("#e69f00", "#009e73", "#cc79a7", "#7a7fd1", "#56b4e9", "#d55e00", "#8c8c00", "#7f7f7f"),
)
DARK = Shades(
    paper="#14171c",
    ink="#e6e8eb",
    faint="#9aa3af",
    grid="#2b313a",
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


def picture(width: float, height: float, draw: Callable[["Figure", Shades], None]) -> Picture:
    """Call `draw` on an empty figure of this size in inches, once for each of the two sets of colours."""
    return Picture(_png(width, height, draw, LIGHT), _png(width, height, draw, DARK))


def _png(width: float, height: float, draw: Callable[["Figure", Shades], None], shades: Shades) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
    with rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), dpi=120, facecolor=shades.paper, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, shades)
        file = io.BytesIO()
        figure.savefig(file, format="png", facecolor=shades.paper, metadata={"Software": None})
        return file.getvalue()


def round_axis(axes: "Axes", ticks: int = 8) -> None:
    """Make the horizontal axis one of rounds: whole numbers, `ticks` at most."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("round")


def label(text: str) -> str:
    """Shorten a name and keep to the letters of the font. A legend leaves out names that begin with an underscore."""
    plain = visible(text).encode("ascii", "backslashreplace").decode()
    plain = plain if len(plain) <= LONGEST_LABEL else f"{plain[: LONGEST_LABEL - 1]}…"
    return f" {plain}" if plain.startswith("_") else plain


def smooth(values: Sequence[float], count: int) -> list[float]:
    """Replace each value by the mean of itself and those before it, `count` in all."""
    return [fmean(values[max(0, place + 1 - count) : place + 1]) for place in range(len(values))]
