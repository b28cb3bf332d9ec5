"""Steps that several commands share: load the settings, open a run, print."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rl_swarm import config as configuration
from rl_swarm.commands.options import whole
from rl_swarm.config import Config
from rl_swarm.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rl_swarm.runs.validate import Finding
    from rl_swarm.show.steps import Step
    from rl_swarm.store import Store
    from rl_swarm.swarm.layout import Layout
    from rl_swarm.tools.opening import Run

Flags = dict[str, str | None]

WORKERS = whole(1, 64)
MOST_NAMED = 10  # experiments in one line

json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")


def warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def check_libraries(role: str = "worker") -> None:
    """Check the libraries of whatever loads a model, before the first import of one that may not fit."""
    if role == "worker":
        from rl_swarm.learning.engine.libraries import require_libraries

        require_libraries()


def load_settings(flags: Flags) -> Config:
    loaded = configuration.load(os.environ, flags)
    warn(loaded.warnings)
    return loaded


def settings_of_run(flags: Flags) -> Config:
    """The settings that a node would have, those of an experiment that exists included; say why if they cannot be read."""
    from rl_swarm.store import folder_of, open_store
    from rl_swarm.swarm import experiment as experiments
    from rl_swarm.swarm.layout import Layout

    loaded = load_settings(flags)
    try:
        flags = found_here(flags) if loaded.experiment else flags
        named = configuration.load(os.environ, flags)
        folder = folder_of(named.store_url)
        if (named.store is not None and named.experiment is None) or (folder and not folder.is_dir()):  # nothing has begun there
            return loaded
        store = open_store(named.store_url, writable=False)
        found = experiments.read(store, Layout(named.experiment_name), named.founder)
    except (ConfigError, StoreError) as error:
        warn([f"the experiment's settings are not shown: {error}"])
        return loaded
    return configuration.load(os.environ, flags, found.settings if found else None)


def found_here(flags: Flags) -> Flags:
    """Name the default folder of `swarm` and `demo` if no folder is named, and the experiment is there."""
    from rl_swarm.store import open_store
    from rl_swarm.swarm import experiment as experiments

    loaded = configuration.load(os.environ, flags)
    if loaded.store is not None or not Path(configuration.DEFAULT_STORE).is_dir():
        return flags
    names = experiments.names(open_store(configuration.DEFAULT_STORE, writable=False))
    if loaded.experiment in names:
        return flags | {"store": configuration.DEFAULT_STORE}
    if loaded.experiment is None and names and not Path(loaded.store_url).is_dir():  # nor has a node alone left a run here
        listed = ", ".join(names[:MOST_NAMED])
        raise ConfigError(f"EXPERIMENT_NAME is not set: name one with --experiment; {configuration.DEFAULT_STORE} has {listed}")
    return flags


def open_run(flags: Flags) -> "tuple[Config, Store, Layout]":
    """Open a run for reading; raise ConfigError if the settings do not say which or, with the nearest names, if there is none."""
    from rl_swarm.store import open_store
    from rl_swarm.swarm import experiment as experiments
    from rl_swarm.swarm.layout import Layout

    loaded = load_settings(found_here(flags))
    configuration.require_run(loaded)
    store, layout = open_store(loaded.store_url, writable=False), Layout(loaded.experiment_name)
    experiments.require(store, layout)
    return loaded, store, layout


def open_experiment(flags: Flags) -> "Run":
    """Open a run with the settings of its experiment; raise ConfigError if there is none."""
    from rl_swarm.tools.opening import open_run

    run = open_run(os.environ, found_here(flags))
    warn(run.config.warnings)
    return run


def make_console(stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr)


def working(line: str) -> "AbstractContextManager[Step]":
    """Say at once what takes a while, and how long it has taken; the result says what comes next."""
    from rl_swarm.show.steps import steps

    return steps(make_console(stderr=True), line)


def print_result(as_json: bool, document: Any, view: "Callable[[], RenderableType]") -> None:
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    make_console().print(view(), crop=False)


def print_findings(findings: "list[Finding]", as_json: bool, document: Any) -> None:
    from rl_swarm.runs.validate import passed
    from rl_swarm.show.tables import findings_table

    print_result(as_json, document, lambda: findings_table(findings))
    sys.exit(0 if passed(findings) else 1)
