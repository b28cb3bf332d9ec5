"""The commands. Each imports what it needs where it needs it, so that it starts fast."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rl_swarm import __version__
from rl_swarm import config as configuration
from rl_swarm.config import MOST_EXTERNAL, MOST_ROUNDS, MOST_SECONDS, MOST_TOKENS, SETTINGS, Config, describe, is_text, load
from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.text import one_line, visible
from rl_swarm.tools.options import Checked, decimal, output_file, output_folder, outside, whole
from rl_swarm.tools.presets import GPU_PRESETS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rl_swarm.runs.validate import Finding
    from rl_swarm.store import Store
    from rl_swarm.swarm.layout import Layout

Flags = dict[str, str | None]

MOST_GPU_GB = 10_000.0  # far beyond any card
MOST_NODES = 10**6
WORKERS = whole(1, 64)


def _refuse_secret(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        why = "is no flag, since everybody on this machine can read command lines"
        raise ConfigError(f"{parameter.opts[0]} {why}: set {SETTINGS[str(parameter.name)].variable} instead")


FLAGS = [
    click.Option(
        [setting.flag, *(["--experiment"] if field_name == "experiment" else []), field_name],
        help=f"{setting.meaning} [{setting.variable}]",
        hidden=setting.secret,
        expose_value=not setting.secret,
        callback=_refuse_secret if setting.secret else None,
    )
    for field_name, setting in SETTINGS.items()
]


class Configurable(click.Command):
    """A command with a flag for every setting, after its own options."""

    def __init__(self, *, params: Sequence[click.Parameter], **attributes: Any) -> None:
        super().__init__(params=[*params, *FLAGS], **attributes)


class Commands(click.Group):
    """Print our own errors as one line, and exit with 2 for a wrong setting or argument, with 1 for any other error."""

    command_class = Configurable

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
        try:
            for argument in args[0] if args else sys.argv[1:]:
                if not is_text(argument):
                    raise ConfigError(f"an argument is not valid UTF-8, got {argument!r}: type it again")
            return super().main(*args, **kwargs)
        except SwarmError as error:
            click.echo(visible(f"rl-swarm: {error}"), err=True)
            sys.exit(2 if isinstance(error, ConfigError) else 1)


json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="rl-swarm")
def main() -> None:
    """Post-train language models together: every node trains its own model and shares rollouts as text."""


@main.command()
@json_option
def config(as_json: bool, **flags: str | None) -> None:
    """Print every setting with its value, source and meaning."""
    rows = describe(_load(flags))

    def table() -> "RenderableType":
        from rich.table import Table

        view = Table("variable", "value", "source", "meaning")
        for row in rows:
            view.add_row(*("" if value is None else str(value) for value in row.values()))
        return view

    _print(as_json, rows, table)


@main.command()
def coordinate(**flags: str | None) -> None:
    """Announce rounds for an experiment. Loads no model."""
    _run_node(flags | {"role": "coordinator"})


@main.command()
def work(**flags: str | None) -> None:
    """Train a model as one worker of an experiment."""
    _run_node(flags | {"role": "worker"})


@main.command()
def node(**flags: str | None) -> None:
    """Coordinate or work, as NODE_ROLE says."""
    _run_node(flags)


def _run_node(flags: Flags) -> None:
    from rl_swarm.node.assembly import make_coordinator, open_node
    from rl_swarm.tasks import tasks_version, warm_up

    node = open_node(os.environ, flags, tasks_version=tasks_version())

    def learn() -> str:
        node.journal.say("loading libraries")
        warm_up()  # reasoning-gym, in a process of its own, while this one loads torch
        from rl_swarm.node.learner import make_learning_worker
        from rl_swarm.tools.push import make_pusher

        return make_learning_worker(node, make_pusher).run()

    node.run(make_coordinator(node).run if node.config.role == "coordinator" else learn)


@main.command()
@click.argument("address", metavar="STORE/EXPERIMENT[#KEY]")
def join(address: str, **flags: str | None) -> None:
    """Join an experiment as a worker, with its settings: a newcomer needs one string only.

    With the founder's public KEY, only what the founder or its author has signed is believed.
    """
    from rl_swarm.swarm import experiment as experiments

    path, _, founder = address.rpartition("#") if "#" in address else (address, "", None)
    place, _, experiment = path.rstrip("/").rpartition("/")
    if not place:
        raise ConfigError(
            f"the address must be STORE/EXPERIMENT or STORE/EXPERIMENT#KEY, got {address!r}: for instance ./data/demo"
        )
    flags |= {"store": place, "experiment": experiment, "role": "worker"} | ({"founder": founder} if founder is not None else {})
    loaded, store, layout = _open(flags)
    found = experiments.read(store, layout, loaded.founder)
    if found is None:
        raise ConfigError(
            f"there is no experiment {experiment!r} in {place!r}: check the address, or start one with 'rl-swarm work'"
        )
    click.echo("this is what you take part in:")
    for name, value in experiments.asks_for(found, loaded.founder):
        click.echo(visible(f"  {name:<11}{one_line(value, most=1000)}"))
    _run_node(flags)


@main.command()
@json_option
@click.option("--watch", "watching", is_flag=True, help="keep showing it until Ctrl-C")
def status(as_json: bool, watching: bool, **flags: str | None) -> None:
    """Show what the experiment and each of its nodes are doing, and since when."""
    import time

    from rl_swarm.runs.progress import ExperimentStatus, experiment_status

    loaded, store, layout = _open(flags)

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

    _print(as_json, found.as_dict(), view)


@main.command()
@click.option("--seconds", type=decimal(1, MOST_SECONDS), default=120.0, help="how long to look")
@json_option
def probe(seconds: float, as_json: bool, **flags: str | None) -> None:
    """Find the tasks and difficulty levels that this model can learn from, and the TASKS value to use."""
    from rl_swarm.clock import SystemClock
    from rl_swarm.tasks import parse_tasks, warm_up

    loaded = _load(flags)
    named = parse_tasks(loaded.tasks)
    click.echo(f"loading {loaded.model}, then asking it for {seconds:g} s", err=True)
    warm_up()
    from rl_swarm.node.learner import load_policy
    from rl_swarm.tools.probe import Probe

    look = Probe(named, load_policy(loaded), group_size=loaded.group_size, seed=loaded.seed, clock=SystemClock())
    with _console(stderr=True).status("") as status:
        found = look.run(seconds, status.update)
    _print(as_json, found.as_dict(), lambda: found.view)


@main.command()
@click.option("--workers", type=WORKERS, help="workers on this machine [4, or the preset's]")
@click.option("--preset", type=Checked(configuration.choice(*GPU_PRESETS)), help="settings for one GPU, see docs/operating.md")
@click.option("--follow", is_flag=True, help="show every node's output, each line with its name")
def swarm(workers: int | None, preset: str | None, follow: bool, **flags: str | None) -> None:
    """Run a coordinator and workers on this machine until the last round or Ctrl-C. Start it again to go on."""
    from rl_swarm.tools.launch import insist_on_founder, launch_environment, make_launcher
    from rl_swarm.tools.memory import refuse_if_too_large

    usual, settings = GPU_PRESETS[preset] if preset else (4, {})
    workers = workers or usual
    if preset:
        click.echo(f"{preset}: {' '.join(f'{name}={value}' for name, value in settings.items())}")
    environment = insist_on_founder(launch_environment({**settings, **os.environ}, flags))
    loaded = load(environment)
    _warn(refuse_if_too_large(environment, loaded, workers))
    launcher = make_launcher(environment, workers, say=click.echo, follow=follow)
    click.echo(f"{workers} workers on {loaded.store_url}, experiment {loaded.experiment_name}; Ctrl-C stops them")
    click.echo(f"swarm {launcher.run()}")


@main.command()
@click.option("--workers", type=WORKERS, default=4, help="workers on this machine")
def demo(workers: int, **flags: str | None) -> None:
    """Train small models together on this machine, shown live, and report what they learnt. A few minutes on two cores."""
    from rl_swarm.tools.demo import run_demo

    run_demo(os.environ, flags, workers, sys.argv[0], _console())


@main.command()
@click.option("--workers", type=WORKERS, default=1, help="workers that this machine is to run")
@json_option
def doctor(workers: int, as_json: bool, **flags: str | None) -> None:
    """Check this machine, its libraries, the store and the experiment, and say what to do. Exit 1 if something is wrong."""
    from rl_swarm.runs.validate import results
    from rl_swarm.tools.doctor import examine

    with _console(stderr=True).status("checking this machine and the store"):
        findings = examine(os.environ, flags, workers=workers)
    _print_findings(findings, as_json, results(flags["experiment"] or os.environ.get("EXPERIMENT_NAME", ""), findings))


@main.command()
@click.argument("name", metavar="MODEL")
@click.option("--workers", type=WORKERS, default=1, help="workers on this machine")
@click.option("--prompt-tokens", type=whole(1, MOST_TOKENS), help="longest prompt [as long as the TASKS make them]")
@click.option("--gpu-gb", type=decimal(1, MOST_GPU_GB), help="assume a GPU of this size, not this machine")
@json_option
def memory(name: str, workers: int, prompt_tokens: int | None, gpu_gb: float | None, as_json: bool, **flags: str | None) -> None:
    """Estimate the memory that workers with MODEL need, part by part, against this machine. Exit 1 if they cannot fit."""
    from rl_swarm.tools.memory import assess, assumed_gpu

    fit = assess(load(os.environ, flags | {"model": name}), workers, assumed_gpu(gpu_gb) if gpu_gb else None, prompt_tokens)
    _print(as_json, fit.as_dict(), lambda: fit.table)
    sys.exit(1 if fit.finding.status == "failed" else 0)


@main.command()
@click.option("--rounds", type=whole(1, MOST_ROUNDS), help="rounds that must be there [as many as were done]")
@click.option("--nodes", type=whole(0, MOST_NODES), help="registered nodes, the coordinator included")
@click.option("--transplants", type=whole(0, MOST_EXTERNAL), help="J that was asked for")
@click.option("--output", type=Checked(output_file, "file"), default="test_results.json", help="where the findings go")
def validate(rounds: int | None, nodes: int | None, transplants: int | None, output: Path, **flags: str | None) -> None:
    """Check that a run is complete and consistent. Exit 0 if it is, 1 if not."""
    from rl_swarm.runs.validate import Expected, results
    from rl_swarm.runs.validate import validate as check

    loaded, store, layout = _open(flags)
    outside(output, loaded.store_url)
    findings = check(store, layout, Expected(rounds, nodes, transplants), loaded.founder)
    document = results(loaded.experiment_name, findings)
    output.write_text(json.dumps(document, indent=1) + "\n")
    _print_findings(findings, False, document)


@main.command()
@click.argument("question")
@json_option
def ask(question: str, as_json: bool, **flags: str | None) -> None:
    """Answer QUESTION with the base model and with the trained one, side by side.

    Without --node-id, the node on this machine that has trained the most rounds answers.
    """
    from rl_swarm.tools.ask import ask as answer
    from rl_swarm.tools.ask import show

    _load_run(flags)
    answers = answer(os.environ, flags, question)
    if as_json:
        click.echo(json.dumps(asdict(answers), indent=1))
    else:
        show(answers, _console())


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def export(folder: Path, **flags: str | None) -> None:
    """Write the trained model to FOLDER, as transformers loads it.

    Without --node-id, the node on this machine that has trained the most rounds is exported. Replaces an earlier export in FOLDER.
    """
    from rl_swarm.tools.export import export_run

    outside(folder, _load_run(flags).store_url)
    figures = export_run(os.environ, flags, folder)
    click.echo(f"{folder}: the model of {figures.node_id} before round {figures.round}")


@main.command()
@click.option("--preset", default="nano", help="nano on a CPU; gpt2 or qwen on a GPU")
@click.option("--splits", help="splits I/J to compare, one of them without sharing [the preset's, 8/0,6/2,4/4,2/6]")
@click.option("--best", help="the split that is tested first, with all seeds [the preset's]")
@click.option("--seeds", type=whole(1, 1000), help="paired seeds of the first two splits [8]; others have 3")
@click.option("--rounds", type=whole(1, MOST_ROUNDS), help="rounds of each run [the preset's horizon]")
@click.option("--nodes", type=WORKERS, help="nodes of each swarm [the preset's]")
@click.option("--ablations", default="", show_default=False, help="all, or some of correction,choice,window,adaptive,models,size")
@click.option("--quick", is_flag=True, help="fewer rounds, nodes and seeds: a look within four minutes that proves nothing")
@click.option("--pilot", is_flag=True, help="run the pilot seeds, and print the horizon and the best split by the rule")
@click.option("--parallel", type=whole(1, 1024), help="runs at a time [cores; 1 on a GPU]")
@click.option("--output", type=Checked(output_folder, "folder"), default="reproduce-results", help="where all of it goes")
def reproduce(**given: Any) -> None:
    """Run the paper's table as real swarms on this machine, and say whether sharing helps, how much, and at what cost."""
    from rl_swarm.reproduce.command import Wanted, as_typed
    from rl_swarm.reproduce.command import reproduce as run

    wanted = Wanted(**{field.name: given.pop(field.name) for field in fields(Wanted)})
    if not run(wanted, os.environ, given, as_typed(sys.argv[1:]), _console()):
        sys.exit(130)


@main.command()
@click.argument("experiments", type=Checked(configuration.name, "name"), nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option("--best", help="the split that is tested first [the sharing one with most own rollouts]")
@click.option("--output", type=Checked(output_folder, "folder"), default="analysis", help="where the report goes")
def analyze(experiments: tuple[str, ...], best: str | None, output: Path, **flags: str | None) -> None:
    """Compare experiments that were run elsewhere, as 'reproduce' does with its own. Runs of one split are paired in order."""
    from rl_swarm.reproduce.command import analyze as run
    from rl_swarm.reproduce.command import as_typed

    loaded = load(os.environ, flags)
    configuration.require(loaded, "store")
    run(loaded, list(experiments), best, outside(output, loaded.store_url), as_typed(sys.argv[1:]), _console())


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _load(flags: Flags) -> Config:
    loaded = load(os.environ, flags)
    _warn(loaded.warnings)
    return loaded


def _load_run(flags: Flags) -> Config:
    """Load the settings of a command that reads a run; raise ConfigError if they do not say which."""
    loaded = _load(flags)
    configuration.require_run(loaded)
    return loaded


def _open(flags: Flags) -> "tuple[Config, Store, Layout]":
    """Open a run for reading."""
    from rl_swarm.store import open_store
    from rl_swarm.swarm.layout import Layout

    loaded = _load_run(flags)
    return loaded, open_store(loaded.store_url, writable=False), Layout(loaded.experiment_name)


def _console(stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr)


def _print(as_json: bool, document: Any, view: "Callable[[], RenderableType]") -> None:
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    _console().print(view(), crop=False)


def _print_findings(findings: "list[Finding]", as_json: bool, document: Any) -> None:
    from rl_swarm.runs.validate import passed
    from rl_swarm.show.live import findings_view

    _print(as_json, document, lambda: findings_view(findings))
    sys.exit(0 if passed(findings) else 1)


if __name__ == "__main__":
    main()
