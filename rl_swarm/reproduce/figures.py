"""Draw the paper's two figures, reward by arm and all arms together, and three that it leaves out: cost, horizon and ablations."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_swarm.reproduce.analysis import Analysis, ArmResult
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS
from rl_swarm.show.drawing import Picture, Shades, picture, round_axis, smooth
from rl_swarm.show.formats import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARM_COLOURS = ("#6b7280", "#56a0d3", "#0b6bcb", "#c2570c", "#009e73", "#cc79a7", "#8c8c00", "#7a7fd1")
COST_LABELS = {"generated": "thousand tokens written by a node", "compute": "the same, and 3 for each token trained on"}


def draw_all(analysis: Analysis) -> dict[str, Picture]:
    """Every figure that these results allow, by name."""
    columns = min(2, len(analysis.table))
    rows = -(-len(analysis.table) // columns)
    drawn = {
        "rewards": picture(5.2 * columns, 3.1 * rows, lambda figure, shades: _draw_panels(figure, shades, analysis, rows, columns)),
        "smoothed": picture(10.5, 4.2, lambda figure, _: _draw_together(figure, analysis.table)),
        "cost": picture(10.5, 4.2, lambda figure, _: _draw_cost(figure, analysis.table)),
    }
    if analysis.comparisons:
        drawn["horizon"] = picture(10.5, 3.6, lambda figure, shades: _draw_horizon(figure, shades, analysis))
    if len(analysis.table) < len(analysis.arms):
        named = (analysis.best, analysis.baseline.name)
        arms = [arm for arm in reversed(analysis.arms) if arm.arm.ablation or arm.name in named]
        drawn["ablations"] = picture(10.5, 0.6 + 0.38 * len(arms), lambda figure, shades: _draw_ablations(figure, shades, arms))
    return drawn


def _draw_panels(figure: "Figure", shades: Shades, analysis: Analysis, rows: int, columns: int) -> None:
    """A panel for each arm: the mean over nodes and seeds, in the band between the lowest and the highest node."""
    first: Axes | None = None
    for place, arm in enumerate(analysis.table):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        colour, own = _colour(place), arm.mean_curve("own")
        rounds = range(1, len(own) + 1)
        axes.plot(rounds, own, ".", color=colour, alpha=0.3, markersize=3)
        axes.fill_between(rounds, arm.mean_curve("low"), arm.mean_curve("high"), color=colour, alpha=0.18, linewidth=0)
        axes.plot(rounds, arm.mean_curve("smoothed"), color=colour, linewidth=2.2)
        axes.set_title(f"{arm.name}: cumulative {arm.mean('cumulative'):.2f}, {len(arm.cells)} seeds")
        axes.axhline(analysis.threshold, color=shades.faint, linewidth=0.8, linestyle=":")
        _finish(axes, "own reward")
    assert first is not None
    highest = max(max(arm.mean_curve(name)) for arm in analysis.table for name in ("own", "high"))
    first.set_ylim(0, 1.05 * highest or 1.0)  # the panels share the scale of the first


def _draw_together(figure: "Figure", arms: Sequence[ArmResult]) -> None:
    """Reward over own rollouts beside the mixed measure, on one scale: the difference between the two is no learning."""
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, sharey=left)
    for place, arm in enumerate(arms):
        smoothed = arm.mean_curve("smoothed")
        rounds = range(1, len(smoothed) + 1)
        _draw_line(left, place, arm, rounds, smoothed)
        _draw_line(right, place, arm, rounds, smooth(arm.mean_curve("mixed"), SMOOTHED_ROUNDS))
    left.set_title(f"Own rollouts, mean of {SMOOTHED_ROUNDS} rounds")
    right.set_title("Mixed with chosen external ones: inflated")
    left.legend(frameon=False)
    _finish(left, "reward")
    _finish(right)


def _draw_cost(figure: "Figure", arms: Sequence[ArmResult]) -> None:
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, sharey=left)
    for axes, (cost, label) in zip((left, right), COST_LABELS.items(), strict=True):
        for place, arm in enumerate(arms):
            thousands = [spent / arm.arm.nodes / 1000 for spent in arm.mean_curve(cost)]
            _draw_line(axes, place, arm, thousands, arm.mean_curve("smoothed"))
        _finish(axes, "own reward" if axes is left else "", label)
    left.set_title("Own reward at equal cost")
    left.legend(frameon=False)


def _draw_horizon(figure: "Figure", shades: Shades, analysis: Analysis) -> None:
    """The gain that any other horizon would have given, for those who doubt the rule."""
    axes = figure.add_subplot(1, 1, 1)
    for place, arm in enumerate(analysis.table[1:], start=1):
        gains = analysis.gain_by_horizon(arm)
        _draw_line(axes, place, arm, [number for number, _ in gains], [gain for _, gain in gains])
    axes.yaxis.set_major_formatter(lambda value, _: percent(value, "+.0%"))
    axes.axhline(0, color=shades.faint, linewidth=0.8)
    axes.set_title("Gain in cumulative own reward, had the horizon been here")
    axes.legend(frameon=False)
    _finish(axes)
    axes.set_ylim(auto=True)


def _draw_ablations(figure: "Figure", shades: Shades, arms: Sequence[ArmResult]) -> None:
    """Cumulative own reward of the arms that change the best split, each seed a dot."""
    axes = figure.add_subplot(1, 1, 1)
    for place, arm in enumerate(arms):
        values = [cell.measures["cumulative"] for cell in arm.cells.values()]
        mean = sum(values) / len(values)
        colour = shades.second if arm.arm.ablation else shades.first
        axes.barh(place, mean, color=colour, alpha=0.35, height=0.62)
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=4)
        axes.text(mean, place, f" {mean:.2f} ", va="center", ha="left" if mean >= max(values) else "right")
    axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
    axes.set_title("Cumulative own reward; each dot is a seed")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)


def _draw_line(axes: "Axes", place: int, arm: ArmResult, across: Sequence[float], values: Sequence[float]) -> None:
    axes.plot(across, values, color=_colour(place), linewidth=2.2, label=arm.name)


def _finish(axes: "Axes", label: str = "", below: str = "round") -> None:
    if below == "round":
        round_axis(axes)
    else:
        axes.set_xlabel(below)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y")


def _colour(place: int) -> str:
    return ARM_COLOURS[place % len(ARM_COLOURS)]
