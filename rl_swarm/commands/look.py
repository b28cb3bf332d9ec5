"""Look at a run."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rl_swarm import config as configuration
from rl_swarm import values
from rl_swarm.commands.common import (
    found_here,
    json_option,
    load_settings,
    make_console,
    open_experiment,
    open_run,
    print_result,
)
from rl_swarm.commands.group import command
from rl_swarm.commands.options import Checked, output_folder, whole
from rl_swarm.commands.typed import program
from rl_swarm.values import node_name
from rl_swarm.web.server import HOST, PORT, choose_address, require_libraries, serve

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_LINES = 100_000


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


@command(settings=("store", "experiment"), example="rl-swarm logs -f worker_1 --gdrive-path ./rl-swarm-data --experiment demo")
@click.argument("node", type=Checked(node_name), required=False)
@click.option("-f", "--follow", is_flag=True, help="go on until Ctrl-C")
@click.option("-n", "--lines", type=whole(1, MOST_LINES), default=20, help="how many to begin with")
@click.option("--all", "detailed", is_flag=True, help="also every state, and the figures of every round")
@click.option("--json", "as_json", is_flag=True, help="print all rows of all journals, as they were written")
def logs(node: str | None, follow: bool, lines: int, detailed: bool, as_json: bool, **flags: str | None) -> None:
    """Show what nodes have said, newest last.

    Shows all nodes, or NODE, in one order of time, from any store and from the consoles of 'swarm' on this machine.
    """
    from rl_swarm.clock import SystemClock
    from rl_swarm.tools.logs import Printer, show_logs

    printer = Printer(make_console(), as_json, detailed)
    with suppress(KeyboardInterrupt):
        show_logs(open_experiment(flags), node, printer, lines, SystemClock() if follow else None)


@command(settings=("store", "experiment"), example="rl-swarm report demo --gdrive-path ./rl-swarm-data")
@click.argument("name", type=Checked(values.name, "name"), required=False, metavar="[EXPERIMENT]")
@click.option("--output", type=Checked(output_folder, "folder"), help="where the files go [into the experiment]")
@click.option("--no-model", is_flag=True, help="take the examples from published texts, and load no model")
@click.option("--csv", "as_csv", is_flag=True, help="print the figures of every node and round instead")
@click.option("--json", "as_json", is_flag=True, help="print status, settings and rewards instead")
def report(name: str | None, output: Path | None, no_model: bool, as_csv: bool, as_json: bool, **flags: str | None) -> None:
    """Write a page and a picture of a run, and say what it learnt.

    The run may be going on. The files go into the experiment, or into this folder if that cannot be written.
    """
    flags["experiment"] = name or flags["experiment"]
    if as_csv or as_json:
        from rl_swarm.tools.experiments import as_table, experiment_summary

        run = open_experiment(flags)
        place, experiment = run.config.store_url, run.config.experiment_name
        text = as_table(place, experiment) if as_csv else json.dumps(experiment_summary(place, experiment), indent=1) + "\n"
        click.echo(text, nl=False)
        return
    from rl_swarm.tools.report import report as write

    write(os.environ, found_here(flags), output, not no_model, program(), make_console())


@command(settings=("store", "experiment"), example="rl-swarm web --gdrive-path ./rl-swarm-data")
@click.option("--host", type=Checked(values.text), default=HOST, help="address to listen on; other machines need a token")
@click.option("--port", type=whole(0, 65535), help=f"[{PORT}, or the next free one]")
def web(host: str, port: int | None, **flags: str | None) -> None:
    """Show runs on a live page, with an API.

    Shows every experiment in a store and changes nothing there. Ctrl-C stops it. WEB_TOKEN sets the token.
    """
    require_libraries()
    loaded = load_settings(flags)
    store = loaded.store or (configuration.DEFAULT_STORE if Path(configuration.DEFAULT_STORE).is_dir() else loaded.store_url)
    with suppress(KeyboardInterrupt):
        serve(store, loaded.experiment, loaded.founder, choose_address(host, port, loaded.web_token), click.echo)
