"""Check this machine, the settings, the model and a run."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rl_swarm.commands.common import (
    WORKERS,
    check_libraries,
    json_option,
    load_settings,
    make_console,
    open_run,
    print_findings,
    print_result,
    settings_of_run,
    warn,
    working,
)
from rl_swarm.commands.group import command
from rl_swarm.commands.options import Checked, decimal, output_file, whole
from rl_swarm.config import MOST_EXTERNAL, MOST_ROUNDS, MOST_SECONDS, MOST_TOKENS, describe, load
from rl_swarm.store import outside

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_GPU_GB = 10_000.0  # far beyond any card
MOST_NODES = 10**6


@command(settings=("store", "experiment", "model"), example="rl-swarm doctor --workers 2 --model-name nano")
@click.option("--workers", type=WORKERS, default=1, help="workers that this machine is to run")
@json_option
def doctor(workers: int, as_json: bool, **flags: str | None) -> None:
    """Check this machine, its libraries and the store.

    Also checks the experiment, and says what to do about each problem. Exit 1 if something is wrong.
    """
    from rl_swarm.runs.validate import results
    from rl_swarm.tools.doctor import examine

    load(os.environ, flags)  # a wrong setting is reported before anything is checked
    with working("checking this machine, its libraries and the store") as step:
        findings = examine(os.environ, flags, workers=workers, step=step)
    print_findings(findings, as_json, results(flags["experiment"] or os.environ.get("EXPERIMENT_NAME", ""), findings))


@command(settings=("model", "tasks", "group_size"), example="rl-swarm probe --model-name nano --seconds 30")
@click.option("--seconds", type=decimal(1, MOST_SECONDS), default=120.0, help="how long to look")
@json_option
def probe(seconds: float, as_json: bool, **flags: str | None) -> None:
    """Find tasks and a prompt that a model can learn from.

    Tries ways to prompt it, tasks and difficulty levels, and prints the settings to use.
    """
    loaded = load_settings(flags)
    check_libraries()
    from rl_swarm.clock import SystemClock
    from rl_swarm.tasks import parse_tasks, warm_up

    named = parse_tasks(loaded.tasks)
    click.echo(f"loading {loaded.model}, then asking it for {seconds:g} s", err=True)
    warm_up()
    from rl_swarm.learning.models.hardware import choose_device
    from rl_swarm.node.learner import load_policy
    from rl_swarm.tools.probe import CPU_TOKENS, PROMPT_SHARE, Probe
    from rl_swarm.tools.prompts import prompted, ways_to_try

    slow = choose_device(loaded.cpu_only) == "cpu" and not loaded.explicit("max_new_tokens")
    cut = CPU_TOKENS if slow and loaded.max_new_tokens > CPU_TOKENS else None
    if cut:
        click.echo(f"on a CPU completions are cut after {cut} tokens, to see more: set MAX_NEW_TOKENS for longer ones", err=True)
        loaded = replace(loaded, max_new_tokens=cut)
    ways, clock = ways_to_try(loaded), SystemClock()
    policy = load_policy(replace(loaded, prompt_examples=0, prefix="none"))
    began = clock.monotonic()
    look = Probe(named, policy, group_size=loaded.group_size, seed=loaded.seed, clock=clock)
    with make_console(stderr=True).status("") as status:
        if len(ways) > 1 or ways[0].settings:
            look.choose_prompt(prompted(policy, ways, named), PROMPT_SHARE * seconds, status.update)
        found = replace(look.run(seconds - (clock.monotonic() - began), status.update), max_new_tokens=cut)
    print_result(as_json, found.as_dict(), lambda: found.view)


@command(settings=("lora_rank", "max_new_tokens", "group_size"), example="rl-swarm memory gpt2 --workers 4 --gpu-gb 24")
@click.argument("name", metavar="MODEL")
@click.option("--workers", type=WORKERS, default=1, help="workers on this machine")
@click.option("--prompt-tokens", type=whole(1, MOST_TOKENS), help="longest prompt [as long as the TASKS make them]")
@click.option("--gpu-gb", type=decimal(1, MOST_GPU_GB), help="assume a GPU of this size, not this machine")
@json_option
def memory(name: str, workers: int, prompt_tokens: int | None, gpu_gb: float | None, as_json: bool, **flags: str | None) -> None:
    """Estimate the memory that workers with MODEL need.

    Shows it part by part, against this machine. Exit 1 if they cannot fit.
    """
    check_libraries()
    from rl_swarm.tools.memory import assess, assumed_gpu

    loaded, gpu = load(os.environ, flags | {"model": name}), assumed_gpu(gpu_gb) if gpu_gb else None
    with working("loading libraries, then estimating"):
        fit = assess(loaded, workers, gpu, prompt_tokens)
    print_result(as_json, fit.as_dict(), lambda: fit.table)
    sys.exit(1 if fit.finding.status == "failed" else 0)


@command(settings=("store", "experiment"), example="rl-swarm config --experiment demo")
@json_option
def config(as_json: bool, **flags: str | None) -> None:
    """Print every setting: value, source and meaning.

    Of an experiment that exists, with its values where you have set none.
    """
    rows = describe(settings_of_run(flags))

    def table() -> "RenderableType":
        from rl_swarm.show.tables import settings_view

        return settings_view(rows, make_console().width)

    print_result(as_json, rows, table)


@command(settings=("store", "experiment"), example="rl-swarm validate --gdrive-path ./rl-swarm-data --experiment demo")
@click.option("--rounds", type=whole(1, MOST_ROUNDS), help="rounds that must be there [as many as were done]")
@click.option("--nodes", type=whole(0, MOST_NODES), help="registered nodes, the coordinator included")
@click.option("--transplants", type=whole(0, MOST_EXTERNAL), help="J that was asked for")
@click.option("--output", type=Checked(output_file, "file"), help="where the findings go [test_results.json in the experiment]")
def validate(rounds: int | None, nodes: int | None, transplants: int | None, output: Path | None, **flags: str | None) -> None:
    """Check that a run is complete and consistent.

    Exit 0 if it is, 1 if not.
    """
    from rl_swarm.runs.validate import Expected, results, write_results
    from rl_swarm.runs.validate import validate as check

    loaded, store, layout = open_run(flags)
    if output:
        outside(output, loaded.store_url)
    findings = check(store, layout, Expected(rounds, nodes, transplants), loaded.founder)
    document = results(loaded.experiment_name, findings)
    warn(write_results(document, output, store, layout))
    print_findings(findings, False, document)
