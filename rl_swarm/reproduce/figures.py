"""Figures as PNG: the paper's two, reward by arm with the band of its nodes and all arms in one picture; then what it leaves out:
reward against cost, and the ablations. They draw what the analysis has computed, and nothing else.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rl_swarm.errors import ConfigError
from rl_swarm.reproduce.analysis import Analysis, ArmResult
from rl_swarm.reproduce.measures import smooth
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS
from rl_swarm.show.report import Shades, as_png, empty_figure, style

if TYPE_CHECKING:  # drawing is heavy, and imported where it is done
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARM_COLOURS = ("#6b7280", "#56a0d3", "#0b6bcb", "#c2570c", "#009e73", "#cc79a7", "#8c8c00", "#7a7fd1")
THOUSAND = 1e3


def draw_all(analysis: Analysis, shades: Shades) -> dict[str, bytes]:
    """Every figure that these results allow, by name."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise ConfigError("figures need the package matplotlib, which is not installed: pip install matplotlib") from None
    table = [arm for arm in analysis.arms if not arm.arm.ablation]
    wanted: dict[str, Callable[[], Figure]] = {
        "rewards": lambda: _draw_panels(table, analysis, shades),
        "smoothed": lambda: _draw_together(table, shades),
        "cost": lambda: _draw_cost(table, shades),
        **({"horizon": lambda: _draw_horizon(analysis, shades)} if analysis.comparisons else {}),
    }
    if any(arm.arm.ablation for arm in analysis.arms):
        wanted["ablations"] = lambda: _draw_ablations(analysis, shades)
    with rc_context(style(shades)):
        return {name: as_png(draw(), shades) for name, draw in wanted.items()}


def _draw_panels(arms: Sequence[ArmResult], analysis: Analysis, shades: Shades) -> "Figure":
    """A panel for each arm: the mean over nodes and seeds, in the band between the lowest and the highest node."""
    columns = min(2, len(arms))
    rows = -(-len(arms) // columns)
    figure = empty_figure(5.2 * columns, 3.1 * rows, shades)
    first: Axes | None = None
    for place, arm in enumerate(arms):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        colour = _colour(place)
        rounds = range(1, len(arm.mean_curve("own")) + 1)
        axes.plot(rounds, arm.mean_curve("own"), ".", color=colour, alpha=0.3, markersize=3)
        axes.fill_between(rounds, arm.mean_curve("low"), arm.mean_curve("high"), color=colour, alpha=0.18, linewidth=0)
        axes.plot(rounds, arm.mean_curve("smoothed"), color=colour, linewidth=2.2)
        axes.set_title(f"{arm.arm.name}: cumulative {arm.mean('cumulative'):.2f}, {len(arm.cells)} seeds")
        axes.axhline(analysis.threshold, color=shades.faint, linewidth=0.8, linestyle=":")
        _finish(axes, "own reward")
    assert first is not None
    highest = max(max(arm.mean_curve(name)) for arm in arms for name in ("own", "high"))
    first.set_ylim(0, 1.05 * highest or 1.0)  # the first panel's scale is everybody's, whatever the others hold
    return figure


def _draw_together(arms: Sequence[ArmResult], shades: Shades) -> "Figure":
    """Reward over own rollouts beside the mixed measure, on one scale: the difference between the two is no learning."""
    figure = empty_figure(10.5, 4.2, shades)
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, sharey=left)
    for place, arm in enumerate(arms):
        smoothed, mixed = arm.mean_curve("smoothed"), smooth(arm.mean_curve("mixed"))
        rounds = range(1, len(smoothed) + 1)
        left.plot(rounds, smoothed, color=_colour(place), linewidth=2.2, label=arm.arm.name)
        right.plot(rounds, mixed, color=_colour(place), linewidth=2.2, label=arm.arm.name)
    left.set_title(f"Own rollouts, mean of {SMOOTHED_ROUNDS} rounds")
    right.set_title("Mixed with chosen external ones: inflated")
    left.legend(frameon=False)
    _finish(left, "reward")
    _finish(right, "")
    return figure


def _draw_cost(arms: Sequence[ArmResult], shades: Shades) -> "Figure":
    figure = empty_figure(10.5, 4.2, shades)
    costs = (("generated", "thousand tokens written by a node"), ("compute", "the same, and 3 for each token trained on"))
    first: Axes | None = None
    for panel, (name, label) in enumerate(costs):
        axes = figure.add_subplot(1, 2, panel + 1, sharey=first)
        first = first or axes
        for place, arm in enumerate(arms):
            spent = [cost / arm.arm.nodes / THOUSAND for cost in arm.mean_curve(name)]
            axes.plot(spent, arm.mean_curve("smoothed"), color=_colour(place), linewidth=2.2, label=arm.arm.name)
        axes.set_title("Own reward at equal cost" if panel == 0 else "")
        _finish(axes, "own reward" if panel == 0 else "", label)
    assert first is not None
    first.legend(frameon=False)
    return figure


def _draw_horizon(analysis: Analysis, shades: Shades) -> "Figure":
    """What the gain would have been with any other horizon: whoever doubts the rule can read it off."""
    figure = empty_figure(10.5, 3.6, shades)
    axes = figure.add_subplot(1, 1, 1)
    for place, arm in enumerate(analysis.arms):
        if not arm.arm.ablation and arm is not analysis.baseline:
            gains = analysis.gain_by_horizon(arm)
            rounds, values = [number for number, _ in gains], [gain for _, gain in gains]
            axes.plot(rounds, values, color=_colour(place), linewidth=2.2, label=arm.arm.name)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f} %")
    axes.axhline(0, color=shades.faint, linewidth=0.8)
    axes.set_title("Gain in cumulative own reward, had the horizon been here")
    axes.legend(frameon=False)
    _finish(axes, "")
    axes.set_ylim(auto=True)
    return figure


def _draw_ablations(analysis: Analysis, shades: Shades) -> "Figure":
    """Cumulative own reward of the arms that change the best split, each seed a dot."""
    arms = [arm for arm in analysis.arms if arm.arm.ablation or arm.arm.name in (analysis.best, analysis.baseline.arm.name)]
    figure = empty_figure(10.5, 0.6 + 0.38 * len(arms), shades)
    axes = figure.add_subplot(1, 1, 1)
    for place, arm in enumerate(reversed(arms)):
        values = [cell.measures.cumulative for cell in arm.cells.values()]
        mean = sum(values) / len(values)
        colour = shades.second if arm.arm.ablation else shades.first
        axes.barh(place, mean, color=colour, alpha=0.35, height=0.62)
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=4)
        axes.text(mean, place, f" {mean:.2f} ", va="center", ha="left" if mean >= max(values) else "right")
    axes.set_yticks(range(len(arms)), [arm.arm.name for arm in reversed(arms)])
    axes.set_title("Cumulative own reward; each dot is a seed")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    return figure


def _finish(axes: "Axes", label: str, below: str = "round") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(below)
    if below == "round":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y")


def _colour(place: int) -> str:
    return ARM_COLOURS[place % len(ARM_COLOURS)]
