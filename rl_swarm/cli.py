"""The commands: thin, and with imports where they are used, so that each starts as fast as it can."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from rl_swarm import __version__
from rl_swarm.config import MOST_EXTERNAL, MOST_ROUNDS, MOST_SECONDS, MOST_TOKENS, SETTINGS, Config, choice, describe, load
from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.text import one_line, visible
from rl_swarm.tools.options import (
    NAME,
    Checked,
    check_arguments,
    decimal,
    output_file,
    output_folder,
    outside,
    show_any_text,
    whole,
)
from rl_swarm.tools.presets import PRESETS

F = TypeVar("F", bound=Callable[..., Any])

MOST_GPU_GB = 10_000.0  # far beyond any card
MOST_NODES = 10**6
WORKERS = whole(1, 64)


class Commands(click.Group):
    """Turns our own errors into one line: exit code 2 for a wrong setting, 1 for everything else that was foreseen."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        show_any_text()
        return super().main(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        check_arguments(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SwarmError as error:
            click.echo(visible(f"rl-swarm: {error}"), err=True)
            sys.exit(2 if isinstance(error, ConfigError) else 1)


def _refuse(variable: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise ConfigError(
                f"{parameter.opts[0]} is no flag, since everybody on this machine can read command lines: set {variable} instead"
            )

    return refuse


def configurable(command: F) -> F:
    """Give a command a flag for every setting that is no secret; values are checked by config.py, not by click."""
    for field_name, setting in reversed(SETTINGS.items()):
        if setting.secret:
            command = click.option(setting.flag, expose_value=False, hidden=True, callback=_refuse(setting.variable))(command)
            continue
        names = [setting.flag, "--experiment"] if field_name == "experiment" else [setting.flag]
        command = click.option(*names, field_name, default=None, help=f"{setting.meaning} [{setting.variable}]")(command)
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
    _coordinate(flags)


def _coordinate(flags: dict[str, str | None]) -> None:
    from rl_swarm.node.assembly import make_coordinator, open_node
    from rl_swarm.tasks import tasks_version

    node = open_node(os.environ, flags | {"role": "coordinator"}, tasks_version=tasks_version())
    node.run(make_coordinator(node).run)


@main.command()
@configurable
def work(**flags: str | None) -> None:
    """Train a model as one worker of an experiment."""
    _work(flags)


def _work(flags: dict[str, str | None]) -> None:
    from rl_swarm.node.assembly import open_node
    from rl_swarm.tasks import tasks_version, warm_up

    node = open_node(os.environ, flags | {"role": "worker"}, tasks_version=tasks_version())

    def learn() -> str:
        node.journal.say("loading libraries")
        warm_up()  # reasoning-gym, in a process of its own, while this one loads torch
        from rl_swarm.node.learner import make_learning_worker
        from rl_swarm.tools.push import make_pusher

        return make_learning_worker(node, make_pusher).run()

    node.run(learn)


@main.command()
@configurable
def node(**flags: str | None) -> None:
    """Coordinate or work, as NODE_ROLE says."""
    run = _coordinate if load(os.environ, flags).role == "coordinator" else _work
    run(flags)


@main.command()
@click.argument("address", metavar="STORE/EXPERIMENT[#KEY]")
@configurable
def join(address: str, **flags: str | None) -> None:
    """Join an experiment as a worker, with its own settings: all that a newcomer needs is one string.

    With the founder's public KEY nothing is believed that neither the founder nor its author has signed.
    """
    from rl_swarm.store import open_store
    from rl_swarm.swarm import experiment as experiments
    from rl_swarm.swarm.layout import Layout

    path, _, founder = address.rpartition("#") if "#" in address else (address, "", None)
    place, separator, experiment = path.rstrip("/").rpartition("/")
    if not separator or not place:
        raise ConfigError(
            f"the address must be STORE/EXPERIMENT or STORE/EXPERIMENT#KEY, got {address!r}: for instance ./data/demo"
        )
    flags |= {"store": place, "experiment": experiment}
    flags |= {"founder": founder} if founder is not None else {}
    loaded = load(os.environ, flags)
    store, layout = open_store(loaded.store_url, writable=False), Layout(loaded.experiment_name)
    found = experiments.read(store, layout, loaded.founder)
    if found is None:
        raise ConfigError(
            f"there is no experiment {experiment!r} in {place!r}: check the address, or start one with 'rl-swarm work'"
        )
    click.echo("this is what you take part in:")
    for name, value in experiments.asks_for(found, loaded.founder):
        click.echo(visible(f"  {name:<11}{one_line(value, most=1000)}"))
    _work(flags)


@main.command()
@configurable
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("--watch", "watching", is_flag=True, help="keep showing it until Ctrl-C")
def status(as_json: bool, watching: bool, **flags: str | None) -> None:
    """Say what the experiment and each of its nodes is doing, and since when."""
    import time

    from rl_swarm.runs.progress import ExperimentStatus, experiment_status
    from rl_swarm.store import open_store
    from rl_swarm.swarm.layout import Layout

    loaded = _load(flags)
    store = open_store(loaded.store_url, writable=False)
    layout = Layout(loaded.experiment_name)

    def read() -> ExperimentStatus:
        return experiment_status(store, layout, loaded.founder)

    if as_json:
        click.echo(json.dumps(read().as_dict(), indent=1))
        return
    from rich.console import Console

    from rl_swarm.show.live import status_view, watch

    if watching:
        watch(read)
    else:
        Console().print(status_view(read(), time.time()))


@main.command()
@configurable
@click.option("--seconds", type=decimal(1, MOST_SECONDS), default=120.0, show_default=True, help="how long to look")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def probe(seconds: float, as_json: bool, **flags: str | None) -> None:
    """Find the tasks and difficulty levels that this model can learn from, and the TASKS value to use."""
    from rich.console import Console

    from rl_swarm.clock import SystemClock
    from rl_swarm.tasks import parse_tasks, warm_up

    loaded, clock = load(os.environ, flags), SystemClock()
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    named = parse_tasks(loaded.tasks)
    click.echo(f"loading {loaded.model}", err=True)
    warm_up()
    from rl_swarm.node.learner import load_policy
    from rl_swarm.tools.probe import Probe, progress_line, show

    look = Probe(named, load_policy(loaded), group_size=loaded.group_size, seed=loaded.seed, clock=clock)
    with progress_line(Console(stderr=True), clock) as watch:
        report = look.run(seconds, watch)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=1))
    else:
        show(report, Console())


@main.command()
@click.option("--workers", type=WORKERS, default=None, help="workers on this machine [4, or the preset's]")
@click.option("--preset", type=Checked(choice(*PRESETS)), help="settings for several nodes on one GPU, see docs/operating.md")
@click.option("--follow", is_flag=True, help="show every node's output, each line with its name")
@configurable
def swarm(workers: int | None, preset: str | None, follow: bool, **flags: str | None) -> None:
    """Run a coordinator and workers on this machine, until the last round or Ctrl-C; start it again to go on."""
    from rl_swarm.tools.launch import Launcher, consoles_of, folders_of, insist_on_founder, launch_environment, plan
    from rl_swarm.tools.memory import refuse_if_too_large

    usual, settings = PRESETS[preset] if preset else (4, {})
    workers = workers or usual
    if preset:
        click.echo(f"{preset}: {' '.join(f'{name}={value}' for name, value in settings.items())}")
    environment = insist_on_founder(launch_environment({**settings, **os.environ}, flags))
    loaded = load(environment)
    for warning in refuse_if_too_large(environment, loaded, workers):
        click.echo(f"warning: {warning}", err=True)
    nodes = plan(environment, workers, consoles_of(loaded))
    launcher = Launcher(nodes, say=click.echo, follow=follow, folders=folders_of(loaded, nodes))
    click.echo(f"{workers} workers on {loaded.store_url}, experiment {loaded.experiment_name}; Ctrl-C stops them")
    click.echo(f"swarm {launcher.run()}")


@main.command()
@click.option("--workers", type=WORKERS, default=4, show_default=True, help="workers on this machine")
@configurable
def demo(workers: int, **flags: str | None) -> None:
    """Train small models together on this machine, shown live, and report what they learnt; a few minutes on two cores."""
    from rich.console import Console

    from rl_swarm.tools.demo import run_demo

    run_demo(os.environ, flags, workers, sys.argv[0], Console())


@main.command()
@configurable
@click.option("--workers", type=WORKERS, default=1, show_default=True, help="workers that this machine is to run")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def doctor(workers: int, as_json: bool, **flags: str | None) -> None:
    """Look at this machine, its libraries, the store and the experiment, and say what to do; exit 1 if something is wrong."""
    from rich.console import Console

    from rl_swarm.runs.validate import passed, results
    from rl_swarm.show.live import findings_view
    from rl_swarm.tools.doctor import examine

    with Console(stderr=True).status("looking at this machine and the store"):
        findings = examine(os.environ, flags, workers=workers)
    if as_json:
        experiment = flags["experiment"] or os.environ.get("EXPERIMENT_NAME", "")
        click.echo(json.dumps(results(experiment, findings), indent=1))
    else:
        Console().print(findings_view(findings))
    sys.exit(0 if passed(findings) else 1)


@main.command()
@click.argument("name", metavar="MODEL")
@click.option("--workers", type=WORKERS, default=1, show_default=True, help="workers on this machine")
@click.option("--prompt-tokens", type=whole(1, MOST_TOKENS), default=None, help="longest prompt [as long as the TASKS make them]")
@click.option("--gpu-gb", type=decimal(1, MOST_GPU_GB), default=None, help="assume a GPU of this size, not this machine")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@configurable
def memory(name: str, workers: int, prompt_tokens: int | None, gpu_gb: float | None, as_json: bool, **flags: str | None) -> None:
    """Estimate the memory that workers with MODEL need, part by part, against this machine; exit 1 if they cannot fit."""
    from rich.console import Console

    from rl_swarm.tools.memory import assess, assumed_gpu

    fit = assess(load(os.environ, flags | {"model": name}), workers, assumed_gpu(gpu_gb) if gpu_gb else None, prompt_tokens)
    if as_json:
        click.echo(json.dumps(fit.as_dict(), indent=1))
    else:
        Console().print(fit.table, soft_wrap=True)
    sys.exit(1 if fit.finding.status == "failed" else 0)


@main.command()
@configurable
@click.option("--rounds", type=whole(1, MOST_ROUNDS), default=None, help="rounds that must be there [as many as were done]")
@click.option("--nodes", type=whole(0, MOST_NODES), default=None, help="registered nodes, the coordinator included")
@click.option("--transplants", type=whole(0, MOST_EXTERNAL), default=None, help="J that was asked for")
@click.option(
    "--output", type=Checked(output_file, "file"), default="test_results.json", show_default=True, help="where the findings go"
)
def validate(rounds: int | None, nodes: int | None, transplants: int | None, output: Path, **flags: str | None) -> None:
    """Check that a run is whole and true; exit 0 if it is, 1 if not."""
    from rich.console import Console

    from rl_swarm.runs.validate import Expected, passed, results
    from rl_swarm.runs.validate import validate as check
    from rl_swarm.show.live import findings_view
    from rl_swarm.store import open_store
    from rl_swarm.swarm.layout import Layout

    loaded = _load(flags)
    outside(output, loaded.store_url)
    store, layout = open_store(loaded.store_url, writable=False), Layout(loaded.experiment_name)
    findings = check(store, layout, Expected(rounds, nodes, transplants), loaded.founder)
    Console().print(findings_view(findings))
    output.write_text(json.dumps(results(loaded.experiment_name, findings), indent=1) + "\n")
    sys.exit(0 if passed(findings) else 1)


@main.command()
@click.argument("question")
@configurable
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def ask(question: str, as_json: bool, **flags: str | None) -> None:
    """Answer QUESTION with the base model and with the trained one, side by side.

    Without --node-id the node that came furthest on this machine is asked.
    """
    from rich.console import Console

    from rl_swarm.tools.ask import ask as answer
    from rl_swarm.tools.ask import show

    _load(flags)
    answers = answer(os.environ, flags, question)
    if as_json:
        click.echo(json.dumps(asdict(answers), indent=1))
    else:
        show(answers, Console())


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@configurable
def export(folder: Path, **flags: str | None) -> None:
    """Write the trained model to FOLDER, as transformers loads it.

    Without --node-id the node that came furthest on this machine is exported. An earlier export in FOLDER is replaced.
    """
    from rl_swarm.tools.export import export_run

    outside(folder, _load(flags).store_url)
    figures = export_run(os.environ, flags, folder)
    click.echo(f"{folder}: the model of {figures.node_id} before round {figures.round}")


@main.command()
@click.option("--preset", default="nano", show_default=True, help="nano on a CPU; gpt2 or qwen on a GPU")
@click.option("--splits", default=None, help="splits I/J to compare, one of them without sharing [the preset's, 8/0,6/2,4/4,2/6]")
@click.option("--best", default=None, help="the split that is tested first, with all seeds [the preset's]")
@click.option("--seeds", type=whole(1, 1000), default=None, help="paired seeds of the first two splits [8]; others have 3")
@click.option("--rounds", type=whole(1, MOST_ROUNDS), default=None, help="rounds of each run [the preset's horizon]")
@click.option("--nodes", type=WORKERS, default=None, help="nodes of each swarm [the preset's]")
@click.option("--ablations", default="", help="all, or some of correction,choice,window,adaptive,models,size")
@click.option("--quick", is_flag=True, help="fewer rounds, nodes and seeds: a look within four minutes that proves nothing")
@click.option("--pilot", is_flag=True, help="run the pilot seeds, and print the horizon and the best split by the rule")
@click.option("--parallel", type=whole(1, 1024), default=None, help="runs at a time [cores; 1 on a GPU]")
@click.option(
    "--output", type=Checked(output_folder, "folder"), default="reproduce-results", show_default=True, help="where all of it goes"
)
@configurable
def reproduce(
    preset: str,
    splits: str | None,
    best: str | None,
    seeds: int | None,
    rounds: int | None,
    nodes: int | None,
    ablations: str,
    quick: bool,
    pilot: bool,
    parallel: int | None,
    output: Path,
    **flags: str | None,
) -> None:
    """Run the paper's table as real swarms on this machine, and say whether sharing helps, how much, and at what cost."""
    from rich.console import Console

    from rl_swarm.reproduce.command import Wanted, as_typed
    from rl_swarm.reproduce.command import reproduce as run

    wanted = Wanted(preset, splits, best, seeds, rounds, nodes, ablations, quick, pilot, parallel, output)
    if not run(wanted, os.environ, flags, as_typed(sys.argv[1:]), Console()):
        sys.exit(130)


@main.command()
@click.argument("experiments", type=NAME, nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option("--best", default=None, help="the split that is tested first [the sharing one with most own rollouts]")
@click.option(
    "--output", type=Checked(output_folder, "folder"), default="analysis", show_default=True, help="where the report goes"
)
@configurable
def analyze(experiments: tuple[str, ...], best: str | None, output: Path, **flags: str | None) -> None:
    """Compare experiments that were run elsewhere, as 'reproduce' does with its own. Runs of one split are paired in order."""
    from rich.console import Console

    from rl_swarm.config import require
    from rl_swarm.reproduce.command import analyze as run
    from rl_swarm.reproduce.command import as_typed

    loaded = load(os.environ, flags)
    require(loaded, "store")
    run(loaded, list(experiments), best, outside(output, loaded.store_url), as_typed(sys.argv[1:]), Console())


def _load(flags: dict[str, str | None]) -> Config:
    from rl_swarm.config import require_run

    loaded = load(os.environ, flags)
    require_run(loaded)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    return loaded


if __name__ == "__main__":
    main()
