"""The commands `reproduce` and `analyze`: plan, run, analyse, report. The cells' own processes do everything heavy."""

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from rl_swarm.config import SETTINGS, Config, load
from rl_swarm.errors import ConfigError
from rl_swarm.reproduce import plan
from rl_swarm.reproduce.analysis import Analysis, analyse, sentences
from rl_swarm.reproduce.elsewhere import read_experiments, usual_best
from rl_swarm.reproduce.plan import ABLATIONS, HORIZON_RULE, PLANNED, REPORTED_SEEDS, Preset, parse_splits
from rl_swarm.reproduce.results import CellResult
from rl_swarm.reproduce.schedule import Schedule
from rl_swarm.reproduce.table import Provenance, write_report
from rl_swarm.show.formats import number
from rl_swarm.show.tables import make_table
from rl_swarm.store import open_store
from rl_swarm.swarm.experiment import public_model
from rl_swarm.tasks import parse_tasks
from rl_swarm.text import counted

SHOWN_EVERY_SECONDS = 30.0
BY_HAND = "the number of rounds was given by hand, by no rule"


@dataclass(frozen=True)
class Wanted:
    """The options of the command; None stands for the preset's value."""

    preset: str = "nano"
    splits: str | None = None
    best: str | None = None
    seeds: int | None = None
    rounds: int | None = None
    nodes: int | None = None
    ablations: str = ""
    quick: bool = False
    pilot: bool = False
    parallel: int | None = None
    output: Path = Path("reproduce-results")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def reproduce(
    wanted: Wanted, environment: Mapping[str, str], flags: Mapping[str, str | None], command: str, console: Console
) -> bool:
    """Run the cells that are not finished and report; False if it was stopped before the end. Raises ConfigError and CellFailed."""
    preset = chosen_preset(wanted)
    settings = {**preset.settings, **given_settings(environment, flags)}
    parse_tasks(load(settings).tasks)  # refuse a wrong value now, in one line, rather than in a cell
    names = ABLATIONS if wanted.ablations == "all" else [name for name in wanted.ablations.split(",") if name]
    arms = plan.arms_of(preset, names)
    cells = plan.pilot_cells(preset, settings) if wanted.pilot else plan.cells_of(preset, arms, settings)
    parallel = wanted.parallel or (os.cpu_count() or 1 if settings.get("CPU_ONLY") == "true" else 1)
    _say(
        console,
        f"{wanted.preset}: {sentence(preset.about)} {counted(len(cells), 'cell')}, {parallel} at a time; stop with Ctrl-C, "
        "continue with the same command",
    )
    schedule = Schedule(cells, wanted.output / "cells", parallel, Shown(console))
    results = schedule.run()
    if schedule.stopping:
        _say(console, f"stopped: {len(results)} of {counted(len(cells), 'cell')} done; continue with the same command")
        return False
    if wanted.pilot:
        show_pilot(results, console)
        return True
    found = analyse(results, preset.best, preset.asked)
    about = f"{sentence(preset.about[0].upper() + preset.about[1:])} {counted(preset.rounds, 'round')}."
    if found.main:
        about += f" The first comparison is {found.main.arm} against {found.main.other}, whatever came out best."
    shown = settings | {"MODEL_NAME": public_model(settings["MODEL_NAME"])}
    _report(found, wanted.output, Provenance(about, command, preset.rule, shown, plan.versions() | _code(results)), console)
    return True


def _code(results: list[CellResult]) -> dict[str, str]:
    """Which code ran the cells, and how many each, if it was not the same for all."""
    ran = Counter(result.code for result in results)
    return {"code": next(iter(ran)) if len(ran) == 1 else ", ".join(f"{code} ({counted(n, 'cell')})" for code, n in ran.items())}


def chosen_preset(wanted: Wanted) -> Preset:
    preset = plan.find_preset(wanted.preset)
    if wanted.pilot and not preset.pilot_rounds:
        raise ConfigError(f"--pilot fixes nothing for --preset {wanted.preset}: leave it out, or use the preset nano")
    if preset.arms:
        if wanted.quick or wanted.splits or wanted.best or wanted.nodes:
            raise ConfigError(f"the arms of --preset {wanted.preset} are fixed: leave out --quick, --splits, --best and --nodes")
        rule = BY_HAND if wanted.rounds else preset.rule
        return replace(preset, seeds=wanted.seeds or preset.seeds, rounds=wanted.rounds or preset.rounds, rule=rule)
    preset = plan.quick(preset) if wanted.quick else preset
    splits = parse_splits(wanted.splits or preset.splits)
    shares = [str(split) for split in splits if split.external]
    best = wanted.best or (preset.best if preset.best in shares else shares[-1] if shares else str(splits[0]))
    if shares and best not in shares:
        raise ConfigError(f"--best must be one of the sharing splits, got {best!r}: use {' or '.join(shares)}")
    if wanted.seeds is not None and not 1 <= wanted.seeds <= len(REPORTED_SEEDS):
        raise ConfigError(f"--seeds must be 1 to {len(REPORTED_SEEDS)}, got {wanted.seeds}: the seeds after them are for pilots")
    return replace(
        preset,
        splits=",".join(map(str, splits)),
        best=best,
        seeds=wanted.seeds or preset.seeds,
        rounds=wanted.rounds or preset.rounds,
        rule=BY_HAND if wanted.rounds else preset.rule,
        equal=preset.equal if (wanted.splits, wanted.best) == (None, None) else {},  # which hold for the preset's own pair
        pilot_rounds=wanted.rounds or preset.pilot_rounds,
        nodes=wanted.nodes or preset.nodes,
    )


def given_settings(environment: Mapping[str, str], flags: Mapping[str, str | None]) -> dict[str, str]:
    """Settings of the nodes from the environment and the command line, by variable. Refuses those that the plan decides."""
    for name, instead in PLANNED.items():
        if flags.get(name) is not None:
            raise ConfigError(f"{SETTINGS[name].flag} is part of the plan, got {flags[name]!r}: use {instead}")
    found = {}
    for name, setting in SETTINGS.items():
        said = flags.get(name)
        value = environment.get(setting.variable) if said is None else said
        if name not in PLANNED and value is not None and not setting.secret:
            found[setting.variable] = value
    return found


class Shown:
    """Progress as lines: a new one when a cell is done, and from time to time."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.now = now
        self._done = -1
        self._at = -SHOWN_EVERY_SECONDS

    def __call__(self, done: int, line: str) -> None:
        if done != self._done or self.now() - self._at >= SHOWN_EVERY_SECONDS:
            self._done, self._at = done, self.now()
            _say(self.console, line)


def show_pilot(results: list[CellResult], console: Console) -> None:
    """Print the horizon by the rule, and the split that did best up to it."""
    rounds = plan.horizon(result.curves.own for result in results if result.cell.arm.split.external == 0)
    _say(console, f"Rule: {HORIZON_RULE}.")
    _say(console, f"Horizon: {counted(rounds, 'round')}.")
    totals: dict[str, list[float]] = {}
    for result in results:
        totals.setdefault(result.cell.arm.name, []).append(sum(result.curves.own[:rounds]))
    table = make_table("split", numbers=("cumulative own reward", "each seed"))
    for name, values in totals.items():
        table.add_row(name, number(sum(values) / len(values), 2), ", ".join(number(value, 2) for value in values))
    console.print(table)
    shares = {result.cell.arm.name for result in results if result.cell.arm.split.external}
    if shares:
        _say(console, f"Best sharing split: {max(shares, key=lambda name: sum(totals[name]))}")


def analyze(config: Config, names: list[str], best: str | None, output: Path, command: str, console: Console) -> None:
    """Report on experiments that were run elsewhere, each one a run of the split that its nodes asked for."""
    results, remarks = read_experiments(open_store(config.store_url, writable=False), names, config.founder)
    for remark in remarks:
        _say(console, remark)
    cells = [result.cell for result in results]
    common = dict(set.intersection(*(set(cell.settings.items()) for cell in cells)))
    versions = dict(set.intersection(*(set(cell.versions.items()) for cell in cells)))
    about = f"{len(cells)} experiments, read from their own files up to round {cells[0].rounds}, the last that all have."
    rule = "these runs were done elsewhere, and nothing was fixed by this command"
    _report(analyse(results, best or usual_best(results)), output, Provenance(about, command, rule, common, versions), console)


def _report(analysis: Analysis, output: Path, provenance: Provenance, console: Console) -> None:
    page = write_report(analysis, output, provenance)
    for sentence in sentences(analysis):
        _say(console, f"- {sentence}")
    _say(console, f"Report: {page}")


def as_typed(arguments: list[str]) -> str:
    return " ".join(["rl-swarm", *map(shlex.quote, arguments)])
