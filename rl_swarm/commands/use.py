"""Use the trained model."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from rl_swarm.commands.common import json_option, load_run, make_console
from rl_swarm.commands.group import command
from rl_swarm.commands.options import outside


@command()
@click.argument("question")
@json_option
def ask(question: str, as_json: bool, **flags: str | None) -> None:
    """Answer QUESTION with the base model and with the trained one, side by side.

    Without --node-id, the node on this machine that has trained the most rounds answers.
    """
    from rl_swarm.tools.ask import ask as answer
    from rl_swarm.tools.ask import show

    load_run(flags)
    answers = answer(os.environ, flags, question)
    if as_json:
        click.echo(json.dumps(asdict(answers), indent=1))
    else:
        show(answers, make_console())


@command()
@click.argument("folder", type=click.Path(path_type=Path))
def export(folder: Path, **flags: str | None) -> None:
    """Write the trained model to FOLDER, as transformers loads it.

    Without --node-id, the node on this machine that has trained the most rounds is exported. Replaces an earlier export in FOLDER.
    """
    from rl_swarm.tools.export import export_run

    outside(folder, load_run(flags).store_url)
    figures = export_run(os.environ, flags, folder)
    click.echo(f"{folder}: the model of {figures.node_id} before round {figures.round}")
