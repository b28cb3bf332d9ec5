"""Look at a run."""

from typing import TYPE_CHECKING

import click

from rl_swarm.commands.common import json_option, open_run, print_result
from rl_swarm.commands.group import command

if TYPE_CHECKING:
    from rich.console import RenderableType


@command(settings=("store", "experiment"), example="rl-swarm status --gdrive-path ./rl-swarm-data --experiment demo --watch")
@json_option
@click.option("--watch", "watching", is_flag=True, help="keep showing it until Ctrl-C")
def status(as_json: bool, watching: bool, **flags: str | None) -> None:
    """Show what every node is doing, and since when."""
    import time

    from rl_swarm.runs.progress import ExperimentStatus, experiment_status

    loaded, store, layout = open_run(flags)

    def read() -> ExperimentStatus:
        return experiment_status(store, layout, loaded.founder)

    if watching and not as_json:
        from rl_swarm.show.live import watch

        watch(read)
        return
    found = read()

    def view() -> "RenderableType":
        from rl_swarm.show.live import status_view

        return status_view(found, time.time())

    print_result(as_json, found.as_dict(), view)
