"""The commands: thin, and with imports where they are used, so that each starts as fast as it can."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rl_swarm import __version__
from rl_swarm.config import SETTINGS, Config, describe, load
from rl_swarm.errors import ConfigError, SwarmError

F = TypeVar("F", bound=Callable[..., Any])


class Commands(click.Group):
    """Turns our own errors into one line: exit code 2 for a wrong setting, 1 for everything else that was foreseen."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SwarmError as error:
            click.echo(f"rl-swarm: {error}", err=True)
            sys.exit(2 if isinstance(error, ConfigError) else 1)


def configurable(command: F) -> F:
    """Give a command a flag for every setting; values are checked by config.py, not by click."""
    for field_name, setting in reversed(SETTINGS.items()):
        help_text = f"{setting.meaning} [{setting.variable}]"
        command = click.option(setting.flag, field_name, default=None, help=help_text)(command)
    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rl-swarm")
def main() -> None:
    """Post-train language models together: every node trains its own model and shares rollouts as text."""


@main.command()
@configurable
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def config(as_json: bool, **flags: str | None) -> None:
    """Print every setting with its value, source and meaning."""
    loaded = load(os.environ, flags)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    rows = describe(loaded)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("variable", "value", "source", "meaning")
    for row in rows:
        shown = "" if row["value"] is None else str(row["value"])
        table.add_row(row["variable"], shown, row["source"], row["meaning"])
    Console().print(table)


@main.command()
@configurable
def coordinate(**flags: str | None) -> None:
    """Announce rounds for an experiment. Loads no model."""
    from rl_swarm.node import make_coordinator, open_node
    from rl_swarm.tasks import tasks_version

    node = open_node(os.environ, flags | {"role": "coordinator"}, tasks_version=tasks_version())
    node.run(make_coordinator(node).run)


@main.command()
@click.argument("address", metavar="STORE/EXPERIMENT")
@configurable
def join(address: str, **flags: str | None) -> None:
    """Join an experiment as a worker, with its own settings: all that a newcomer needs is one string."""
    from rl_swarm.store import open_store
    from rl_swarm.swarm import experiment as experiments
    from rl_swarm.swarm.layout import Layout

    place, separator, experiment = address.rstrip("/").rpartition("/")
    if not separator or not place:
        raise ConfigError(f"the address must be STORE/EXPERIMENT, got {address!r}: for instance ./rl-swarm-data/demo")
    flags |= {"store": place, "experiment": experiment}
    loaded = load(os.environ, flags)
    if experiments.read(open_store(loaded.store_url), Layout(loaded.experiment_name)) is None:
        raise ConfigError(
            f"there is no experiment {experiment!r} in {place!r}: check the address, or start one with 'rl-swarm work'"
        )
    _work(flags)


@main.command()
@configurable
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("--watch", "watching", is_flag=True, help="keep showing it until Ctrl-C")
def status(as_json: bool, watching: bool, **flags: str | None) -> None:
    """Say what the experiment and each of its nodes is doing, and since when."""
    import time

    from rl_swarm.progress import ExperimentStatus, experiment_status
    from rl_swarm.store import open_store
    from rl_swarm.swarm.layout import Layout

    loaded = _load(flags)
    store = open_store(loaded.store_url)
    layout = Layout(loaded.experiment_name)

    def read() -> ExperimentStatus:
        return experiment_status(store, layout)

    if as_json:
        click.echo(json.dumps(read().as_dict(), indent=1))
        return
    from rich.console import Console

    from rl_swarm.view import status_view, watch

    if watching:
        watch(read)
    else:
        Console().print(status_view(read(), time.time()))


def _load(flags: dict[str, str | None]) -> Config:
    from rl_swarm.config import require

    loaded = load(os.environ, flags)
    require(loaded, "store", "experiment")
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    return loaded


if __name__ == "__main__":
    main()
