"""Keep the shared folder tidy."""

import click

from rl_swarm.commands.common import json_option, open_experiment, print_result
from rl_swarm.commands.group import command


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
