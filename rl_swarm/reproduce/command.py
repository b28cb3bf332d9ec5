"""What the commands `reproduce` and `analyze` do: plan, run, analyse, report. Everything heavy is in the processes of the cells."""

import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from rl_swarm.config import SETTINGS, Config, load
from rl_swarm.errors import ConfigError
from rl_swarm.reproduce import elsewhere
from rl_swarm.reproduce.analysis import Analysis, analyse, sentences
from rl_swarm.reproduce.measures import curves
from rl_swarm.reproduce.plan import (
    ABLATIONS,
    HORIZON_RULE,
    PLANNED,
    REPORTED_SEEDS,
    Cell,
    Preset,
    arms_of,
    cells_of,
    find_preset,
    horizon,
    pilot_cells,
    quick,
    versions,
)
from rl_swarm.reproduce.report import write_report
from rl_swarm.reproduce.results import CellResult
from rl_swarm.reproduce.schedule import Schedule, Standing
from rl_swarm.reproduce.split import parse_splits
from rl_swarm.show.live import duration
from rl_swarm.store import open_store
from rl_swarm.tasks import parse_tasks

SHOWN_EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line; None is the preset's."""

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


def reproduce(
    wanted: Wanted, environment: Mapping[str, str], flags: Mapping[str, str | None], command: str, console: Console
) -> bool:
    """Run what is not run yet and report; False if it was stopped before the end. Raises ConfigError and CellFailed."""
    preset = chosen_preset(wanted)
    settings = {**preset.settings, **given_settings(environment, flags)}
    check(settings)
    names = list(ABLATIONS) if wanted.ablations == "all" else [name for name in wanted.ablations.split(",") if name]
    cells = pilot_cells(preset, settings) if wanted.pilot else cells_of(preset, arms_of(preset, names), settings)
    parallel = wanted.parallel or (os.cpu_count() or 1 if settings.get("CPU_ONLY") == "true" else 1)
    console.print(
        f"{wanted.preset}: {preset.about}. {preset.nodes} nodes, {len(cells)} cells, {parallel} at a time; stop with Ctrl-C, the "
        "same command goes on",
        highlight=False,
        soft_wrap=True,
    )
    schedule = Schedule(cells, wanted.output / "cells", parallel, Shown(console))
    results = schedule.run()
    if schedule.stopping:
        console.print(f"stopped: {len(results)} of {len(cells)} cells are done; the same command goes on", highlight=False)
        return False
    if wanted.pilot:
        show_pilot(results, console)
        return True
    analysis = analyse(results, preset.best)
    about = about_plan(preset, cells)
    page = write_report(
        analysis, wanted.output, about=about, command=command, rule=preset.rule, settings=settings, versions=versions()
    )
    show(analysis, page, console)
    return True


def chosen_preset(wanted: Wanted) -> Preset:
    preset = find_preset(wanted.preset)
    preset = quick(preset) if wanted.quick else preset
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
        rule="the number of rounds was given by hand, by no rule" if wanted.rounds else preset.rule,
        pilot_rounds=wanted.rounds or preset.pilot_rounds,
        nodes=wanted.nodes or preset.nodes,
    )


def given_settings(environment: Mapping[str, str], flags: Mapping[str, str | None]) -> dict[str, str]:
    """What somebody said about the nodes, by variable; what the plan governs cannot be said here."""
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


def check(settings: Mapping[str, str]) -> None:
    """Refuse a wrong value now, in one line, rather than in a cell."""
    parse_tasks(load(settings).tasks)


def about_plan(preset: Preset, cells: list[Cell]) -> str:
    return (
        f"{preset.about[0].upper()}{preset.about[1:]}; {preset.rounds} rounds, {preset.nodes} nodes, {len(cells)} swarms. The "
        f"first comparison is {preset.best} against the split without sharing, whatever came out best."
    )


class Shown:
    """Progress as lines: a new one when a cell is done, and from time to time."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.now = now
        self._done = -1
        self._at = -SHOWN_EVERY_SECONDS

    def __call__(self, standing: Standing) -> None:
        if standing.done == self._done and self.now() - self._at < SHOWN_EVERY_SECONDS:
            return
        self._done, self._at = standing.done, self.now()
        running = "; ".join(f"{name} {done}/{rounds}" for name, done, rounds in standing.running)
        left = "" if standing.seconds_left is None else f", {duration(standing.seconds_left)} left"
        now = f": {running}" if running else ""
        self.console.print(f"{standing.done} of {standing.cells} cells{left}{now}", highlight=False, soft_wrap=True)


def show_pilot(results: list[CellResult], console: Console) -> None:
    """The horizon by the rule, and the split that the pilot favours up to it."""
    alone = [result for result in results if result.cell.arm.split.external == 0]
    rounds = horizon([curves(result).own for result in alone])
    console.print(f"Rule: {HORIZON_RULE}.", highlight=False, soft_wrap=True)
    console.print(f"Horizon: {rounds} rounds.", highlight=False)
    totals: dict[str, list[float]] = {}
    for result in results:
        totals.setdefault(result.cell.arm.name, []).append(sum(curves(result).own[:rounds]))
    for name, values in totals.items():
        mean = sum(values) / len(values)
        console.print(
            f"{name}: cumulative own reward {mean:.2f} ({', '.join(f'{value:.2f}' for value in values)})", highlight=False
        )
    shares = {result.cell.arm.name for result in results if result.cell.arm.split.external}
    if shares:
        console.print(f"Best sharing split: {max(shares, key=lambda name: sum(totals[name]))}", highlight=False)


def show(analysis: Analysis, page: Path, console: Console) -> None:
    for sentence in sentences(analysis):
        console.print(f"- {sentence}", highlight=False, soft_wrap=True)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def analyze(config: Config, names: list[str], best: str | None, output: Path, command: str, console: Console) -> None:
    """Report on experiments that were run elsewhere, each one a run of the split that its nodes asked for."""
    store = open_store(config.store_url, writable=False)
    results = elsewhere.read_experiments(store, names, config.founder)
    for name in names:
        for line in elsewhere.about(store, name, config.founder):
            console.print(f"{name}: {line}", highlight=False, soft_wrap=True, markup=False)
    shares = [result.cell.arm for result in results if result.cell.arm.split.external]
    found = analyse(results, best or (max(shares, key=lambda arm: arm.split.own).name if shares else results[0].cell.arm.name))
    common = dict(set.intersection(*(set(result.cell.settings.items()) for result in results)))
    versions_found = dict(set.intersection(*(set(result.cell.versions.items()) for result in results)))
    about = f"{len(results)} experiments, read from their own files up to round {results[0].cell.rounds}, the last that all have."
    rule = "these runs were done elsewhere, and nothing was fixed by this command"
    page = write_report(found, output, about=about, command=command, rule=rule, settings=common, versions=versions_found)
    show(found, page, console)


def as_typed(arguments: list[str]) -> str:
    return " ".join(["rl-swarm", *map(shlex.quote, arguments)])
