"""Look at a run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rl_swarm import config as configuration
from rl_swarm.commands.common import json_option, make_console, open_run, print_result
from rl_swarm.commands.group import command
from rl_swarm.commands.options import Checked, output_folder
from rl_swarm.commands.typed import program

if TYPE_CHECKING:
    from rich.console import RenderableType


@command(settings=("store", "experiment"), example="rl-swarm status --gdrive-path ./rl-swarm-data --experiment demo --watch")
@json_option
@click.option("--watch", "watching", is_flag=True, help="keep showing it until Ctrl-C")
def status(as_json: bool, watching: bool, **flags: str | None) -> None:
    """Show what every node is doing, and since when."""
    import time

    from rl_swarm.runs.following import Following, look_once

    loaded, store, layout = open_run(flags)
    if watching and not as_json:
        from rl_swarm.show.live import watch

        watch(Following(store, layout, loaded.founder), make_console())
        return
    moment, now = look_once(store, layout, loaded.founder), time.time()

    def view() -> "RenderableType":
        from rl_swarm.show.live import status_view

        return status_view(moment, now, make_console().width)

    print_result(as_json, moment.as_dict(now), view)


@command(settings=("store", "experiment"), example="rl-swarm report demo --gdrive-path ./rl-swarm-data")
@click.argument("name", type=Checked(configuration.name, "name"), required=False, metavar="[EXPERIMENT]")
@click.option("--output", type=Checked(output_folder, "folder"), help="where the files go [into the experiment]")
@click.option("--no-model", is_flag=True, help="take the examples from published texts, and load no model")
def report(name: str | None, output: Path | None, no_model: bool, **flags: str | None) -> None:
    """Write a page and a picture of a run, and say what it learnt.

    The run may be going on. The files go into the experiment, or into this folder if that cannot be written.
    """
    from rl_swarm.tools.report import report as write

    flags["experiment"] = name or flags["experiment"]
    write(os.environ, flags, output, not no_model, program(), make_console())
