"""Write the report of the paper's table: CSV and JSON for programs, figures and a page for people.

Every figure of the page is also in the CSV and JSON files beside it. An earlier report is replaced.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from rl_swarm.reproduce.analysis import Analysis, ArmResult, Comparison, rounds_to, sentences
from rl_swarm.reproduce.figures import Figure, make_figures
from rl_swarm.reproduce.plan import SMOOTHED_ROUNDS
from rl_swarm.reproduce.results import COLLAPSED, TRAINED_COST, CellResult
from rl_swarm.show.drawing import in_rows, sheet
from rl_swarm.show.formats import NOTHING, date, number, percent
from rl_swarm.show.page import Html, bullets, element, join, make_page, plots, settings_table, table
from rl_swarm.swarm.experiment import public_model
from rl_swarm.text import counted

PAGE = "report.html"
WORDS = Html(
    "Cumulative is the sum over rounds of the mean over nodes of the reward of <em>own</em> completions. Final is the mean of the "
    f"last tenth of the rounds. Smoothed is over {SMOOTHED_ROUNDS} rounds. Held-out is greedy accuracy on questions that nobody "
    "trains on, in any form the same wherever the answer stands. Oscillation is the sum of all falls of the smoothed reward, lost "
    f"how far it is below its peak at the end, both as shares of the peak; a run that lost more than {percent(COLLAPSED)} has "
    "collapsed. Compute is in tokens: those that the model reads or writes count once, those that it trains on "
    f"{TRAINED_COST} times. Origins is the effective number of peers that external rollouts came from."
)


@dataclass(frozen=True)
class Provenance:
    """How the results came about, as the report states it."""

    about: str
    command: str
    horizon_rule: str
    settings: Mapping[str, str]
    versions: Mapping[str, str]


def write_report(analysis: Analysis, folder: Path, provenance: Provenance) -> Path:
    """Write everything to `folder`; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(analysis, folder)
    results = json.dumps(asdict(provenance) | _results(analysis), indent=1, sort_keys=True)
    (folder / "results.json").write_text(results + "\n", "utf-8")
    figures = make_figures(analysis)
    for name, figure in figures.items():
        (folder / f"{name}.png").write_bytes(sheet(figure.title, facts(analysis), in_rows(figure.panels)))
    (folder / PAGE).write_text(table_page(analysis, figures, provenance), "utf-8")
    return folder / PAGE


def write_csv(analysis: Analysis, folder: Path) -> None:
    """A float has as many digits as it needs; a figure that was not measured is empty."""
    for name, rows in (("cells.csv", list(_cells(analysis))), ("rounds.csv", list(_rounds(analysis)))):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _each(analysis: Analysis) -> Iterator[tuple[ArmResult, int, CellResult]]:
    return ((arm, seed, cell) for arm in analysis.arms for seed, cell in arm.cells.items())


def _cells(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for arm, seed, cell in _each(analysis):
        yield {
            "arm": arm.name,
            "ablation": arm.arm.ablation,
            "split": str(arm.arm.split),
            "nodes": arm.arm.nodes,
            "equal": arm.arm.equal,
            "seed": seed,
            "rounds": len(cell.curves.own),
            "rounds_to_threshold": rounds_to(cell.curves.smoothed, analysis.threshold),
            **cell.measures,
        }


def _rounds(analysis: Analysis) -> Iterator[dict[str, Any]]:
    means = ("held_out", "held_out_in_form", "held_out_style_blind", "own_used", "external_wanted", "external_used", "external_age")
    for arm, seed, cell in _each(analysis):
        curves = cell.curves
        for place, (round_number, rows) in enumerate(cell.by_round.items()):
            known = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in means}
            yield {
                "arm": arm.name,
                "seed": seed,
                "round": round_number,
                "own_reward": curves.own[place],
                "own_reward_smoothed": curves.smoothed[place],
                "node_low": curves.low[place],
                "node_high": curves.high[place],
                "mixed_reward_inflated": curves.mixed[place],
                **{name: fmean(values) if values else None for name, values in known.items()},
                "tokens_generated_so_far": curves.generated[place],
                "compute_so_far": curves.compute[place],
                "seconds": sum(sum(row.seconds.values()) for row in rows),
            }


def _results(analysis: Analysis) -> dict[str, Any]:
    def compared(each: Comparison) -> dict[str, Any]:
        figures = ("gain", "gain_range", "final_gain", "p", "knows_more", "held_out_range", "held_out_p")
        return asdict(each) | {name: getattr(each, name) for name in figures} | {"worst_seed_gain": each.worst}

    measures = next(cell for _, _, cell in _each(analysis)).measures
    before = analysis.before
    return {
        "before": msgspec.to_builtins(before) if before else None,
        "threshold": analysis.threshold,
        "best": analysis.best,
        "sentences": sentences(analysis),
        "arms": [
            {"arm": asdict(arm.arm), "seeds": list(arm.cells), "held_out_by_task": arm.by_task}
            | {name: arm.mean(name) for name in measures}
            for arm in analysis.arms
        ],
        "against_alone": [compared(each) for each in analysis.comparisons],
        "against_best": [compared(each) for each in analysis.ablations],
        "at_equal_cost": {cost: compared(each) for cost, each in analysis.at_equal_cost.items()},
    }


def table_page(analysis: Analysis, figures: Mapping[str, Figure], provenance: Provenance) -> str:
    found = sentences(analysis)
    outcome = "held-out accuracy at the end" if analysis.asked.outcome == "held_out" else "cumulative own reward"
    test = (
        f"The measure that decides is {outcome}, named beforehand. The test is a paired permutation test over seeds, two-sided; "
        "few seeds cannot give a small p, however clear their interval. Intervals are Student's, over seeds for the same "
        "questions; over the questions where there is one seed, which says nothing of other seeds."
    )
    return make_page(
        analysis.asked.title,
        element("p", facts(analysis), "faint"),
        element("p", provenance.about),
        *(element("p", sentence, "note") for sentence in found[:1]),
        bullets(found[1:]),
        element("h2", "The table"),
        _rewards(analysis),
        *_tasks(analysis),
        *(join((element("h3", each.title), plots(each.panels), element("p", each.caption, "faint"))) for each in figures.values()),
        *_answers(analysis),
        element("h2", "Cost"),
        _costs(analysis),
        element("h2", "External rollouts"),
        _external(analysis),
        element("h2", "Seed by seed"),
        _seeds(analysis),
        element("h2", "What the words mean"),
        element("p", WORDS),
        element("p", f"Rounds: {provenance.horizon_rule}. {test}"),
        element("h2", "Settings"),
        element("pre", provenance.command),
        settings_table(provenance.settings),
        element("h2", "Versions"),
        table(("", ""), sorted(provenance.versions.items())),
    )


def _answers(analysis: Analysis) -> list[Html]:
    """Answers of the first node of the split that was named beforehand, before and after; nothing where no text was kept."""
    arm = analysis.arm(analysis.best) or analysis.baseline
    seed, cell = next(iter(arm.cells.items()))
    if not cell.answers:
        return []
    rows = ((each.prompt, each.key if each.key is not None else NOTHING, each.before, each.after) for each in cell.answers)
    caption = f"Greedy answers of node 1 of {arm.name}, seed {seed}. The questions were fixed before anything was answered."
    return [
        element("h2", "Held-out questions, before and after"),
        table(("question", "right answer", "before", "after"), rows, caption=caption),
    ]


def facts(analysis: Analysis) -> str:
    """What a picture or a page is of, in one line."""
    cells = [cell for _, _, cell in _each(analysis)]
    model = cells[0].cell.settings.get("MODEL_NAME", "?")
    rounds, ended = max(len(cell.by_round) for cell in cells), max(row.timestamp for cell in cells for row in cell.rows)
    sizes = sorted({arm.arm.nodes for arm in analysis.arms})
    nodes = counted(sizes[0], "node") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} nodes"
    swarms = f"{counted(len(cells), 'swarm')} of {nodes}, {counted(rounds, 'round')}"
    return f"{swarms} · model {public_model(model)} · last round {date(ended)}"


def _by_arm(analysis: Analysis, columns: Mapping[str, Callable[[ArmResult], object]], caption: str) -> Html:
    """A table with a row for each arm; a column is a function of the arm."""
    rows = ((arm.name, *(column(arm) for column in columns.values())) for arm in analysis.arms)
    return table(("arm", *columns), rows, numbers=len(columns), caption=caption)


def _mean(measure: str, digits: int = 3) -> Callable[[ArmResult], str]:
    return lambda arm: number(arm.mean(measure), digits)


def _rewards(analysis: Analysis) -> Html:
    against = {each.arm: each for each in analysis.comparisons}

    def compared(show: Callable[[Comparison], str]) -> Callable[[ArmResult], str]:
        return lambda arm: show(against[arm.name]) if arm.name in against else NOTHING

    columns: dict[str, Callable[[ArmResult], object]] = {
        "seeds": lambda arm: len(arm.cells),
        "cumulative": _mean("cumulative", 2),
        "against alone": compared(lambda each: percent(each.gain, "+.0%")),
        "worst seed": compared(lambda each: percent(each.worst, "+.0%")),
        "p": compared(lambda each: number(each.p if each.seeds else None, 4)),
        "kept": compared(lambda each: percent(each.kept)),
        "final": _mean("final"),
        "rounds to threshold": lambda arm: number(rounds_to(arm.mean_curve("smoothed"), analysis.threshold), 0),
        "held-out": _mean("held_out"),
        "points against alone": compared(_points),
        "in the form": _mean("held_out_in_form"),
        "in any form": _mean("held_out_style_blind"),
        "oscillation": _mean("oscillation", 2),
        "lost": lambda arm: percent(arm.mean("collapse")),
        "mixed, inflated": _mean("cumulative_mixed", 2),
    }
    before = analysis.before
    base = (
        f" Held-out before training, {counted(before.held_out_questions, 'question')}: {before.held_out:.3f}, in the form "
        f"{before.held_out_in_form:.3f}, in any form {before.held_out_style_blind:.3f}."
        if before
        else ""
    )
    caption = f"Means over seeds. The threshold is {analysis.threshold:.3f}, half of the final reward without sharing.{base}"
    return _by_arm(analysis, columns, caption)


def _points(each: Comparison) -> str:
    if each.knows_more is None:
        return NOTHING
    found = each.held_out_range
    ends = f", {100 * found[0]:+.1f} to {100 * found[1]:+.1f}" if found else ""
    return f"{100 * each.knows_more:+.1f}{ends}" + (f" (p {each.held_out_p:.4f})" if len(each.held_out) > 1 else "")


def _tasks(analysis: Analysis) -> list[Html]:
    """Held-out accuracy task by task, as the verifier reads; nothing where it was not measured before training and after."""
    before, arms = analysis.before, [arm for arm in analysis.table if arm.by_task]
    if not before or not arms:
        return []
    rows = (
        (task, number(start, 3), *(number(arm.by_task.get(task), 3) for arm in arms))
        for task, start in before.held_out_by_task.items()
    )
    caption = "Held-out accuracy of each task, as the verifier reads: before training, and at the end of each arm."
    return [table(("task", "before", *(arm.name for arm in arms)), rows, numbers=1 + len(arms), caption=caption)]


def _costs(analysis: Analysis) -> Html:
    columns: dict[str, Callable[[ArmResult], object]] = {
        "nodes": lambda arm: arm.arm.nodes,
        "tokens written": lambda arm: f"{arm.mean('tokens_generated'):,.0f}",
        "operations": lambda arm: number(arm.mean("operations"), 1),
        "tokens trained on": lambda arm: f"{arm.mean('tokens_trained'):,.0f}",
        "compute": lambda arm: f"{arm.mean('compute'):,.0f}",
        "seconds of writing and training": lambda arm: f"{arm.mean('seconds_working'):,.0f}",
        "seconds": lambda arm: f"{arm.mean('seconds'):,.0f}",
        "refused": lambda arm: f"{arm.mean('rejected'):,.0f}",
        "failed verdicts": lambda arm: f"{arm.mean('failed_verdicts'):,.0f}",
    }
    caption = (
        "Of a whole swarm, mean over seeds; operations on the store are per node and round. Seconds are of one process with one "
        "thread, on a machine that did other things too. Refused are files and rollouts of peers; verdicts fail when a verifier "
        "takes too long or raises."
    )
    return _by_arm(analysis, columns, caption)


def _external(analysis: Analysis) -> Html:
    columns = {
        "own informative": _mean("own_used", 2),
        "external wanted": _mean("external_wanted", 2),
        "external used": _mean("external_used", 2),
        "age in rounds": _mean("external_age", 2),
        "origins": _mean("origins", 2),
    }
    return _by_arm(analysis, columns, "Means per node and round.")


def _seeds(analysis: Analysis) -> Html:
    seeds = sorted({seed for _, seed, _ in _each(analysis)})

    def of(measure: str, digits: int, caption: str) -> Html:
        rows = (
            (arm.name, *(number(arm.cells[seed].measures[measure], digits) if seed in arm.cells else "" for seed in seeds))
            for arm in analysis.arms
        )
        return table(("arm", *seeds), rows, numbers=len(seeds), caption=caption)

    return join((of("cumulative", 2, "Cumulative own reward."), of("held_out", 3, "Held-out accuracy at the end.")))
