"""Write what was found: CSV and JSON for programs, figures and a page for people. An earlier report is replaced."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from rl_swarm.reproduce.analysis import Analysis, ArmResult, Comparison, Finished, sentences
from rl_swarm.reproduce.figures import draw_all
from rl_swarm.reproduce.measures import Measures, rounds_to
from rl_swarm.reproduce.page import make_page
from rl_swarm.reproduce.results import write_csv
from rl_swarm.show.report import DARK, LIGHT

PAGE, ROUNDS, CELLS, RESULTS = "report.html", "rounds.csv", "cells.csv", "results.json"
MEASURED = tuple(field.name for field in dataclasses.fields(Measures))


def write_report(
    analysis: Analysis,
    folder: Path,
    *,
    about: str,
    command: str,
    rule: str,
    settings: Mapping[str, str],
    versions: Mapping[str, str],
) -> Path:
    """Write everything to `folder`; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(
        folder / CELLS, ("arm", "ablation", "split", "nodes", "seed", "rounds", "rounds_to_threshold", *MEASURED), _cells(analysis)
    )
    write_csv(folder / ROUNDS, ROUND_HEADS, _rounds(analysis))
    plain = _results(analysis, settings, versions, {"about": about, "command": command, "horizon_rule": rule})
    (folder / RESULTS).write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n", "utf-8")
    light, dark = draw_all(analysis, LIGHT), draw_all(analysis, DARK)
    for name, data in light.items():
        (folder / f"{name}.png").write_bytes(data)
    figures = [(name, data, dark[name]) for name, data in light.items()]
    (folder / PAGE).write_text(make_page(analysis, figures, about, command, rule, settings, versions), "utf-8")
    return folder / PAGE


def _each(analysis: Analysis) -> Iterator[tuple[ArmResult, int, Finished]]:
    return ((arm, seed, cell) for arm in analysis.arms for seed, cell in arm.cells.items())


def _cells(analysis: Analysis) -> Iterator[list[Any]]:
    for arm, seed, cell in _each(analysis):
        reached = rounds_to(cell.curves.smoothed, analysis.threshold)
        measured = [getattr(cell.measures, name) for name in MEASURED]
        yield [arm.arm.name, arm.arm.ablation, str(arm.arm.split), arm.arm.nodes, seed, len(cell.curves.own), reached, *measured]


ROUND_HEADS = (
    "arm",
    "seed",
    "round",
    "own_reward",
    "own_reward_smoothed",
    "node_low",
    "node_high",
    "mixed_reward_inflated",
    "held_out",
    "held_out_style_blind",
    "own_used",
    "external_wanted",
    "external_used",
    "external_age",
    "tokens_generated_so_far",
    "compute_so_far",
    "seconds",
)


def _rounds(analysis: Analysis) -> Iterator[list[Any]]:
    for arm, seed, cell in _each(analysis):
        numbers = sorted({row.round for row in cell.result.rows})
        by_round = {number: [row for row in cell.result.rows if row.round == number] for number in numbers}
        found = cell.curves
        for place, (number, rows) in enumerate(by_round.items()):
            yield [
                arm.arm.name,
                seed,
                number,
                found.own[place],
                found.smoothed[place],
                found.low[place],
                found.high[place],
                found.mixed[place],
                _mean([row.held_out for row in rows]),
                _mean([row.held_out_style_blind for row in rows]),
                _mean([row.own_used for row in rows]),
                _mean([row.external_wanted for row in rows]),
                _mean([row.external_used for row in rows]),
                _mean([row.external_age for row in rows]),
                found.generated[place],
                found.compute[place],
                sum(row.seconds for row in rows),
            ]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _results(
    analysis: Analysis, settings: Mapping[str, str], versions: Mapping[str, str], said: Mapping[str, str]
) -> dict[str, Any]:
    return {
        **said,
        "settings": dict(settings),
        "versions": dict(versions),
        "threshold": analysis.threshold,
        "best": analysis.best,
        "sentences": sentences(analysis),
        "arms": [
            {"arm": dataclasses.asdict(arm.arm), "seeds": list(arm.cells)} | {name: arm.mean(name) for name in MEASURED}
            for arm in analysis.arms
        ],
        "against_alone": [_compared(each) for each in analysis.comparisons],
        "against_best": [_compared(each) for each in analysis.ablations],
    }


def _compared(each: Comparison) -> dict[str, Any]:
    derived = {"gain": each.gain, "final_gain": each.final_gain, "p": each.p, "worst_seed_gain": each.worst}
    return dataclasses.asdict(each) | derived
