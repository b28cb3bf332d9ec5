"""Keep the shared folder tidy."""

import os

import click

from rl_swarm import config as configuration
from rl_swarm import values
from rl_swarm.commands.common import Flags, json_option, open_experiment, print_result
from rl_swarm.commands.group import command
from rl_swarm.commands.options import Checked
from rl_swarm.errors import ConfigError
from rl_swarm.text import counted

LIST, SHOW, CLEAN = "list", "show", "clean"


@command(settings=("store",), example="rl-swarm experiments list\nrl-swarm experiments show demo --gdrive-path ./rl-swarm-data")
@click.argument("action", type=Checked(values.choice(LIST, SHOW, CLEAN)), default=LIST, metavar="[list|show|clean]")
@click.argument("name", type=Checked(values.name, "name"), required=False, metavar="[EXPERIMENT]")
@click.option("--keep-checkpoints", is_flag=True, help="clean all but checkpoints and settings")
@click.option("--yes", is_flag=True, help="clean without asking")
@json_option
def experiments(action: str, name: str | None, keep_checkpoints: bool, yes: bool, as_json: bool, **flags: str | None) -> None:
    """List the experiments of a folder, show or remove one.

    'clean' removes what nodes have written of an experiment, after asking.
    """
    from rl_swarm.show.shelf import list_view, show_view
    from rl_swarm.tools import experiments as shelf

    place = _place(flags)
    if action == LIST:
        rows = shelf.list_experiments(place)
        print_result(as_json, rows, lambda: list_view(rows, place))
        return
    chosen = name or flags["experiment"] or os.environ.get("EXPERIMENT_NAME")
    if chosen is None:
        raise ConfigError(f"there is nothing to {action}: name an experiment, 'rl-swarm experiments list' shows them")
    shelf.require(place, chosen)
    if action == SHOW:
        summary = shelf.experiment_summary(place, chosen)
        print_result(as_json, summary, lambda: show_view(summary))
        return
    status = shelf.get_experiment_status(place, chosen)["status"]
    left = "all but its checkpoints and settings" if keep_checkpoints else "all of it"
    if not yes:
        click.confirm(f"{chosen} in {place} is {status}: remove {left}?", abort=True, err=True)
    removed = shelf.cleanup_experiment(place, chosen, keep_checkpoints)
    if archive := shelf.archive_left(place, chosen):
        line = f"archived rollouts stay in {archive}: remove them before another experiment is called {chosen}"
        click.echo(line, err=True)
    print_result(as_json, {"experiment": chosen, "removed": removed}, lambda: f"{chosen}: removed {counted(removed, 'file')}")


def _place(flags: Flags) -> str:
    """The store that the settings name, or the default folder of `swarm` and `demo` if it is here, or that of a node alone."""
    loaded = configuration.load(os.environ, flags)
    if loaded.store is None and os.path.isdir(configuration.DEFAULT_STORE):
        return configuration.DEFAULT_STORE
    if loaded.store is None and not os.path.isdir(loaded.store_url):
        configuration.require(loaded, "store")
    return loaded.store_url


@command(
    settings=("store", "experiment", "keep_rounds", "archive"),
    example="rl-swarm prune --experiment demo --rollout-keep-last-n-rounds 20 --dry-run",
)
@click.option("--dry-run", is_flag=True, help="only say what would be removed")
@json_option
def prune(dry_run: bool, as_json: bool, **flags: str | None) -> None:
    """Remove or archive old rollouts of an experiment.

    Keeps what nodes still need, and the record of the run.
    """
    from rl_swarm.tools.prune import prune as remove
    from rl_swarm.tools.prune import sentence

    run = open_experiment(flags | {"cleanup": "true"})
    found = remove(run, dry_run, lambda line: click.echo(line, err=True))
    document = {"experiment": run.config.experiment_name, "dry_run": dry_run, "rounds": list(found.rounds)}
    document |= {"files": found.files, "bytes": found.bytes, "archived": found.archived}
    print_result(as_json, document, lambda: sentence(run, found, dry_run))
