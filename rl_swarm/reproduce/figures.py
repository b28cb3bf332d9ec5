"""Draw the paper's two figures, reward by arm and all arms together, and those that it leaves out: knowledge, cost, ablations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from rl_swarm.reproduce.analysis import COSTS, Analysis, ArmResult
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS
from rl_swarm.show.drawing import Panel, Shades, round_axis, smooth
from rl_swarm.show.formats import percent
from rl_swarm.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARM_COLOURS = ("#6b7280", "#56a0d3", "#0b6bcb", "#c2570c", "#009e73", "#cc79a7", "#8c8c00", "#7a7fd1")
COST_LABELS = {"writing": "thousand tokens written by a node", "compute": "compute of a node, in thousand tokens"}
_END_WORDS = {"final": "own reward in the last tenth of the rounds", "held_out": "held-out accuracy at the end"}


@dataclass(frozen=True)
class Figure:
    """Panels that belong together, under one title and above one caption."""

    title: str
    caption: str
    panels: Sequence[Panel]


def make_figures(analysis: Analysis) -> Mapping[str, Figure]:
    """Every figure that these results allow, by name."""
    arms = analysis.table
    top = 1.05 * max(max(arm.mean_curve(name)) for arm in arms for name in ("own", "high")) or 1.0
    mixed = [smooth(arm.mean_curve("mixed"), SMOOTHED_ROUNDS) for arm in arms]
    both = 1.05 * max(max(curve) for curve in [*mixed, *(arm.mean_curve("smoothed") for arm in arms)]) or 1.0
    made = {
        "rewards": Figure(
            "Own reward of every arm",
            "Reward over own rollouts, one panel an arm. Dots are rounds, the line is smoothed, the band reaches from the lowest "
            "to the highest node; all are means over seeds. The dotted line is the threshold.",
            [
                Panel(partial(_draw_arm, arm=arm, place=place, threshold=analysis.threshold, top=top), f"Own reward of {arm.name}")
                for place, arm in enumerate(arms)
            ],
        ),
        "smoothed": Figure(
            "All arms together, and what an inflated measure would show",
            "All arms, smoothed. First the reward of each node's own completions, then the measure that also counts external "
            "rollouts, which were chosen for being informative: it rises without any learning.",
            [
                Panel(partial(_draw_own, arms=arms, top=both), "Own reward of all arms"),
                Panel(partial(_draw_mixed, arms=arms, curves=mixed, top=both), "Mixed reward of all arms"),
            ],
        ),
        "cost": Figure(
            "Where a run ends, by its cost",
            f"Each dot is the end of a seed: {_END_WORDS[_end_of(analysis)]}. Points on the way are not shown, since the learning "
            "rate falls until the end of a run.",
            [Panel(partial(_draw_cost, analysis=analysis, cost=cost), f"The end by {COST_LABELS[cost]}") for cost in COST_LABELS],
        ),
    }
    if any(arm.knowledge for arm in arms):
        made["knowledge"] = _knowledge(analysis)
    if analysis.comparisons:
        made["horizon"] = Figure(
            "The gain up to each round",
            "The gain against the split without sharing, up to each round of these runs. A run that was planned to end there would "
            "have had a lower learning rate. The first rounds, in which next to nothing is paid, are left out.",
            [Panel(partial(_draw_horizon, analysis=analysis), "Gain up to each round")],
        )
    if analysis.ablations:
        named = (analysis.best, analysis.baseline.name)
        changed = [arm for arm in reversed(analysis.arms) if arm.arm.ablation or arm.name in named]
        seeds = set[int]().union(*(arm.cells for arm in changed if arm.arm.ablation))
        made["ablations"] = Figure(
            "The best split, changed in one way",
            "The effect of changing the best split in one way, on the seeds that the changed ones have.",
            [
                Panel(
                    partial(_draw_ablations, arms=changed, seeds=seeds),
                    "Cumulative own reward of the ablations",
                    height=0.9 + 0.38 * len(changed),
                )
            ],
        )
    return made


def _knowledge(analysis: Analysis) -> Figure:
    """Held-out accuracy by round and, where the arms are swarms of several sizes, by size."""
    panels = [Panel(partial(_draw_knowledge, analysis=analysis), "Held-out accuracy by round")]
    caption = (
        "Greedy accuracy on held-out questions, as the verifier reads: the mean of nodes and seeds, in the band between the lowest "
        "and the highest seed. The dotted line is what the base model knows in the form that is rewarded. Without that form it "
        "would have next to nothing at round 0, and is left out there."
    )
    if len({arm.arm.nodes for arm in analysis.table}) > 2:
        panels.append(Panel(partial(_draw_sizes, analysis=analysis), "Held-out accuracy at the end by size of the swarm"))
        caption += " By size, each dot is a seed."
    return Figure("What the nodes know", caption, panels)


def _draw_knowledge(axes: "Axes", shades: Shades, *, analysis: Analysis) -> None:
    before = analysis.before
    formless = before is not None and before.held_out < before.held_out_in_form / 2  # its start near 0 would hide what follows
    for place, arm in enumerate(analysis.table):
        rounds, curves = (
            [number for number in arm.knowledge if number or not formless],
            [cell.knowledge for cell in arm.cells.values()],
        )
        seeds = [[curve[number] for curve in curves] for number in rounds]
        axes.fill_between(rounds, list(map(min, seeds)), list(map(max, seeds)), color=_colour(place), alpha=0.18, linewidth=0)
        _draw_line(axes, place, arm, rounds, [arm.knowledge[number] for number in rounds])
        axes.plot(rounds, [arm.knowledge[number] for number in rounds], "o", color=_colour(place), markersize=5)
    axes.set_title("Held-out accuracy")
    _finish_knowledge(axes, shades, analysis)
    axes.legend(frameon=False, loc="lower right")
    round_axis(axes)


def _draw_sizes(axes: "Axes", shades: Shades, *, analysis: Analysis) -> None:
    arms = sorted(analysis.table, key=lambda arm: arm.arm.nodes)
    ends = [(arm.arm.nodes, [cell.measures["held_out"] for cell in arm.cells.values()]) for arm in arms]
    measured = [(nodes, known) for nodes, values in ends if (known := [value for value in values if value is not None])]
    axes.plot([nodes for nodes, _ in measured], [fmean(values) for _, values in measured], color=shades.first, linewidth=2.2)
    for nodes, values in measured:
        axes.plot([nodes] * len(values), values, "o", color=shades.first, markersize=4, alpha=0.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks([nodes for nodes, _ in measured], [str(nodes) for nodes, _ in measured])
    axes.set_xlabel("nodes of the swarm")
    axes.set_title("Held-out accuracy at the end")
    _finish_knowledge(axes, shades, analysis)


def _finish_knowledge(axes: "Axes", shades: Shades, analysis: Analysis) -> None:
    if before := analysis.before:
        axes.axhline(before.held_out_in_form, color=shades.faint, linewidth=0.8, linestyle=":")
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    axes.grid(axis="y")


def _draw_arm(axes: "Axes", shades: Shades, *, arm: ArmResult, place: int, threshold: float, top: float) -> None:
    """The mean over nodes and seeds, in the band between the lowest and the highest node; all arms on one scale."""
    colour, own = _colour(place), arm.mean_curve("own")
    rounds = range(1, len(own) + 1)
    axes.plot(rounds, own, ".", color=colour, alpha=0.3, markersize=3)
    axes.fill_between(rounds, arm.mean_curve("low"), arm.mean_curve("high"), color=colour, alpha=0.18, linewidth=0)
    axes.plot(rounds, arm.mean_curve("smoothed"), color=colour, linewidth=2.2)
    axes.set_title(f"{arm.name}: cumulative {arm.mean('cumulative'):.2f}, {counted(len(arm.cells), 'seed')}")
    axes.axhline(threshold, color=shades.faint, linewidth=0.8, linestyle=":")
    _finish(axes, "own reward")
    axes.set_ylim(0, top)


def _draw_own(axes: "Axes", shades: Shades, *, arms: Sequence[ArmResult], top: float) -> None:
    _draw_lines(axes, arms, [arm.mean_curve("smoothed") for arm in arms])
    axes.set_title(f"Own rollouts, mean of {SMOOTHED_ROUNDS} rounds")
    axes.set_ylim(0, top)


def _draw_mixed(axes: "Axes", shades: Shades, *, arms: Sequence[ArmResult], curves: Sequence[Sequence[float]], top: float) -> None:
    """The mixed measure on the scale of the other: the difference between the two is no learning."""
    _draw_lines(axes, arms, curves)
    axes.set_title("Mixed with chosen external ones: inflated")
    axes.set_ylim(0, top)


def _draw_lines(axes: "Axes", arms: Sequence[ArmResult], curves: Sequence[Sequence[float]]) -> None:
    for place, (arm, curve) in enumerate(zip(arms, curves, strict=True)):
        _draw_line(axes, place, arm, range(1, len(curve) + 1), curve)
    axes.legend(frameon=False)
    _finish(axes, "reward")


def _end_of(analysis: Analysis) -> str:
    """The measure of the end: held-out accuracy where every run has it."""
    measured = [cell.measures["held_out"] for arm in analysis.arms for cell in arm.cells.values()]
    return "final" if None in measured else "held_out"


def _draw_cost(axes: "Axes", shades: Shades, *, analysis: Analysis, cost: str) -> None:
    """The ends of all arms but the ablations, over what a node spent to get there."""
    measure = _end_of(analysis)
    for place, arm in enumerate(arm for arm in analysis.arms if not arm.arm.ablation):
        ends = [(cell.measures[COSTS[cost]] / arm.arm.nodes / 1000, cell.measures[measure]) for cell in arm.cells.values()]
        axes.plot(*zip(*ends, strict=True), "o", color=_colour(place), markersize=5, alpha=0.7, label=arm.name)
    axes.set_title(f"{_END_WORDS[measure].capitalize()} by cost")
    axes.set_xlabel(COST_LABELS[cost])
    axes.set_xlim(left=0)
    axes.legend(frameon=False)
    if measure == "held_out":
        _finish_knowledge(axes, shades, analysis)


def _draw_horizon(axes: "Axes", shades: Shades, *, analysis: Analysis) -> None:
    """How the gain grows and shrinks on the way."""
    for place, arm in enumerate(analysis.table[1:], start=1):
        gains = analysis.gain_by_horizon(arm)
        _draw_line(axes, place, arm, [number for number, _ in gains], [gain for _, gain in gains])
    axes.yaxis.set_major_formatter(lambda value, _: percent(value, "+.0%"))
    axes.axhline(0, color=shades.faint, linewidth=0.8)
    axes.set_title("Gain in cumulative own reward up to each round")
    axes.legend(frameon=False)
    _finish(axes)
    axes.set_ylim(auto=True)


def _draw_ablations(axes: "Axes", shades: Shades, *, arms: Sequence[ArmResult], seeds: set[int]) -> None:
    """Cumulative own reward of the arms that change the best split, each seed a dot."""
    for place, arm in enumerate(arms):
        values = [cell.measures["cumulative"] for seed, cell in arm.cells.items() if seed in seeds]
        mean = fmean(values)
        colour = shades.second if arm.arm.ablation else shades.first
        axes.barh(place, mean, color=colour, alpha=0.35, height=0.62)
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=4)
        axes.text(min(values), place, f"{mean:.2f}  ", va="center", ha="right")
    axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
    axes.set_title("Cumulative own reward; each dot is a seed")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)


def _draw_line(axes: "Axes", place: int, arm: ArmResult, across: Sequence[float], values: Sequence[float]) -> None:
    axes.plot(across, values, color=_colour(place), linewidth=2.2, label=arm.name)


def _finish(axes: "Axes", label: str = "") -> None:
    round_axis(axes)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y")


def _colour(place: int) -> str:
    return ARM_COLOURS[place % len(ARM_COLOURS)]
