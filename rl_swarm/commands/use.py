"""Use the trained model."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from rl_swarm.commands.common import check_libraries, json_option, make_console, open_experiment, print_result, working
from rl_swarm.commands.group import command
from rl_swarm.commands.options import Checked, question_text
from rl_swarm.config import load
from rl_swarm.store import outside
from rl_swarm.values import place

TRAINED = ("store", "experiment", "node_id")
LOADING = "loading libraries"


@command(settings=TRAINED, example="rl-swarm chat --gdrive-path ./rl-swarm-data --experiment demo")
@click.option("--base", is_flag=True, help="show the base model's answers beside the trained one's")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object for each answer")
def chat(base: bool, as_json: bool, **flags: str | None) -> None:
    """Talk to the trained model.

    Without --node-id, the node on this machine that has trained the most rounds answers. In a script, each line of the input is a
    question.
    """
    run = open_experiment(flags)
    check_libraries()
    with working(LOADING) as step:
        from rl_swarm.tools import chat as talking
        from rl_swarm.tools.ask import load_trained

        talk = talking.Talk(load_trained(run, step), base)
    click.echo(talking.introduction(talk.trained), err=True)
    typed = sys.stdin.isatty() and sys.stdout.isatty()
    questions = talking.typed_questions() if typed else talking.piped_questions()
    talking.chat(talk, questions, make_console(), lambda line: click.echo(line, err=True), as_json)


@command(settings=TRAINED, example='rl-swarm ask "Calculate 3 + 4." --experiment demo')
@click.argument("question", type=Checked(question_text))
@json_option
def ask(question: str, as_json: bool, **flags: str | None) -> None:
    """Answer a question with the base and the trained model.

    Without --node-id, the node on this machine that has trained the most rounds answers.
    """
    run = open_experiment(flags)
    check_libraries()
    with working(LOADING) as step:
        from rl_swarm.tools.ask import ask as answer
        from rl_swarm.tools.ask import show

        answers = answer(run, question, step)
    if as_json:
        click.echo(json.dumps(asdict(answers), indent=1))
    else:
        show(answers, make_console())


@command(settings=TRAINED, example="rl-swarm evaluate --gdrive-path ./rl-swarm-data --experiment demo")
@json_option
def evaluate(as_json: bool, **flags: str | None) -> None:
    """Measure base and trained model on held-out questions.

    Without --node-id, the node on this machine that has trained the most rounds is measured.
    """
    run = open_experiment(flags)
    check_libraries()
    with working(LOADING) as step:
        from rl_swarm.tools.evaluate import evaluate as measure

        measured = measure(run, step)
    print_result(as_json, measured.as_dict(), lambda: measured.view)


@command(settings=TRAINED, example="rl-swarm export ./model --gdrive-path ./rl-swarm-data --experiment demo")
@click.argument("folder", type=click.Path(path_type=Path))
def export(folder: Path, **flags: str | None) -> None:
    """Write the trained model as transformers loads it.

    Without --node-id, the node on this machine that has trained the most rounds is exported. Replaces an earlier export in FOLDER.
    """
    from rl_swarm.tools.export import earlier_files, export_run

    earlier_files(outside(folder, load(os.environ, flags).store_url))  # a wrong folder is refused before a model is loaded
    run = open_experiment(flags)
    check_libraries()
    with working(LOADING) as step:
        figures = export_run(run, folder, step)
    click.echo(f"{folder}: the model of {figures.node_id} before round {figures.round}")


@command(settings=("experiment",), example="rl-swarm copy s3://my-bucket/rl-swarm ./rl-swarm-data --experiment first")
@click.argument("source", type=Checked(place), metavar="SRC")
@click.argument("target", type=Checked(place), metavar="DST")
@json_option
def copy(source: str, target: str, as_json: bool, **flags: str | None) -> None:
    """Copy an experiment from one store to another.

    SRC and DST are folders or URLs of stores. Every file is read back; run it again to go on, or to bring what is new. Nodes go on
    from the copy.
    """
    from rl_swarm.store import open_store
    from rl_swarm.tools.copying import Copied, choose, copy_experiment

    here = open_store(source, writable=False)
    layout = choose(here, load(os.environ, flags).experiment)
    there = open_store(target)
    with make_console(stderr=True).status(f"copying {layout.experiment_name}") as status:

        def show(done: Copied) -> None:
            status.update(f"copying {layout.experiment_name}: {done.written} written, {done.unchanged} there already")

        done = copy_experiment(here, there, layout, show)
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    left = f", {done.left_out} left out" if done.left_out else ""
    click.echo(
        f"{layout.experiment_name}: {done.written} files written ({done.bytes:,} bytes), {done.unchanged} there already{left}"
    )
