"""Look at runs from a cell: live, as pictures, as a table of records, and several side by side.

The store and the experiment are those of the environment (GDRIVE_PATH, EXPERIMENT_NAME) unless a cell names another experiment.
"""

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from rl_swarm.config import Config, load
from rl_swarm.reproduce.analysis import PAPERS_CUMULATIVE, PAPERS_GAIN, Analysis, ArmResult, analyse
from rl_swarm.reproduce.elsewhere import read_experiments, usual_best
from rl_swarm.runs import progress
from rl_swarm.runs.following import Following, look_once
from rl_swarm.runs.summary import summarise
from rl_swarm.show import live
from rl_swarm.show.drawing import Panel, Shades, round_axis, sheet, smooth
from rl_swarm.show.formats import number, percent
from rl_swarm.show.report import PICTURE, make_report
from rl_swarm.store import open_store
from rl_swarm.swarm.layout import Layout

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

COLOURS = ("#6b7280", "#56a0d3", "#0b6bcb", "#c2570c")
PAPERS_WINDOW = 100  # rounds over which the paper's curves are smoothed


def _configured(experiment: str | None) -> Config:
    named = {"EXPERIMENT_NAME": experiment} if experiment else {}
    return load({**os.environ, **named})


def _following(experiment: str | None = None) -> Following:
    config = _configured(experiment)
    return Following(open_store(config.store_url, writable=False), Layout(config.experiment_name), config.founder)


def live_view() -> live.LiveView:
    """The live view of the run, in this cell."""
    return live.LiveView(_following(), Console(), frame_seconds=live.WATCH_SECONDS)


def watch(experiment: str | None = None) -> None:
    """Show a run in this cell until it has ended or the cell is interrupted; it may run in another notebook, or elsewhere."""
    live.watch(_following(experiment), Console(), until_ended=True)


def records(experiment: str | None = None) -> "pandas.DataFrame":
    """A row for each round and node, with every figure of the record."""
    import pandas

    config = _configured(experiment)
    store, layout = open_store(config.store_url, writable=False), Layout(config.experiment_name)
    nodes = look_once(store, layout, config.founder).nodes
    rows = [row for node in nodes for row in progress.records(store, layout, node.node_id)]
    return pandas.DataFrame([msgspec.to_builtins(row) for row in sorted(rows, key=lambda row: (row.round, row.node_id))])


def show_report(experiment: str | None = None) -> None:
    """Show the picture of a run: rewards, held-out accuracy, and who learnt from whom."""
    config = _configured(experiment)
    store = open_store(config.store_url, writable=False)
    show_picture(make_report(summarise(store, Layout(config.experiment_name), config.founder), [])[PICTURE])


def show_picture(png: bytes) -> None:
    from IPython.display import Image, display

    display(Image(png))


def compare(experiments: Sequence[str]) -> "pandas.DataFrame":
    """Return a table of runs that differ in I and J, each against the one that does not share, with the p of its test.

    The paper's figures stand beside ours, in columns that say so; its models and tasks are others.
    """
    import pandas

    found, remarks = _analysed(experiments)
    for remark in remarks:
        print(remark)
    against = {each.arm: each for each in found.comparisons}
    rows = [
        {
            "split": arm.name,
            "runs": len(arm.cells),
            "cumulative own reward": number(arm.mean("cumulative"), 2),
            f"against {found.baseline.name}, measured": percent(against[arm.name].gain, "+.0%") if arm.name in against else "",
            "p": number(against[arm.name].p, 4) if arm.name in against else "",
            "held-out": percent(arm.mean("held_out"), ".1%"),
            "the paper's cumulative": PAPERS_CUMULATIVE.get(arm.name, ""),
            "the paper's gain": percent(PAPERS_GAIN[arm.name], "+.0%") if arm.name in PAPERS_GAIN else "",
        }
        for arm in found.arms
    ]
    return pandas.DataFrame(rows).set_index("split")


def show_curves(experiments: Sequence[str]) -> None:
    """Draw the own reward of each run round by round, smoothed over the paper's 100 rounds, and summed up."""
    arms = _analysed(experiments)[0].arms
    kinds = {"Own reward": _raw, f"Smoothed over {PAPERS_WINDOW} rounds": _smoothed, "Cumulative own reward": _summed}
    panels = [Panel(partial(_draw, arms=arms, title=title, curve=curve), title) for title, curve in kinds.items()]
    rounds = len(arms[0].mean_curve("own"))
    show_picture(sheet("Reward by split", f"{len(experiments)} runs of {rounds} rounds", [panels[:2], panels[2:]]))


def _analysed(experiments: Sequence[str]) -> tuple[Analysis, list[str]]:
    """The runs side by side, and lines that say who signed their figures, and who was left out."""
    config = _configured(None)
    results, remarks = read_experiments(open_store(config.store_url, writable=False), experiments, config.founder)
    return analyse(results, usual_best(results)), remarks


def _raw(values: Sequence[float]) -> list[float]:
    return list(values)


def _smoothed(values: Sequence[float]) -> list[float]:
    return smooth(values, PAPERS_WINDOW)


def _summed(values: Sequence[float]) -> list[float]:
    return list(accumulate(values))


def _draw(axes: "Axes", shades: Shades, *, arms: Sequence[ArmResult], title: str, curve: Any) -> None:
    for place, arm in enumerate(arms):
        values = curve(arm.mean_curve("own"))
        axes.plot(range(1, len(values) + 1), values, color=COLOURS[place % len(COLOURS)], linewidth=1.8, label=arm.name)
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.legend(frameon=False)
    round_axis(axes)
