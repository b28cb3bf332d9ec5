"""Start: run nodes, one or many."""

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from rl_swarm import config as configuration
from rl_swarm import values
from rl_swarm.commands.common import WORKERS, Flags, check_libraries, load_settings, make_console, open_run, warn
from rl_swarm.commands.group import Rare, command
from rl_swarm.commands.options import Checked, cluster_address, decimal, gpus
from rl_swarm.commands.typed import program, resuming, to_repeat, what_next
from rl_swarm.errors import ConfigError
from rl_swarm.processes.threads import sleep_when_idle
from rl_swarm.text import counted, one_line, visible
from rl_swarm.tools.presets import GPU_PRESETS

if TYPE_CHECKING:
    from rl_swarm.store import Store
    from rl_swarm.swarm.experiment import Experiment
    from rl_swarm.swarm.layout import Layout

NODE = ("store", "experiment", "node_id")
SHARING = ("own_count", "external_count", "max_rounds")

correct_option = click.option(
    "--correct", cls=Rare, is_flag=True, help="replace an experiment in which no round was played by one with these settings"
)


web_option = click.option("--web", is_flag=True, help="also show the run on a live page")


@command(settings=("experiment", *SHARING), example="rl-swarm demo --workers 2 --max-rounds 30")
@click.option("--workers", type=WORKERS, default=4, help="workers on this machine")
@web_option
def demo(workers: int, web: bool, **flags: str | None) -> None:
    """Train small models together on this machine, shown live.

    Takes a few minutes on two cores, and ends with a report of what they learnt.
    """
    load_settings(flags)
    check_libraries()
    from rl_swarm.tools.demo import run_demo

    run_demo(os.environ, flags, workers, program(), make_console(), to_repeat(configuration.load(os.environ, flags)), web)


@command(
    settings=("store", "experiment", "model", *SHARING),
    example="rl-swarm swarm --workers 2 --experiment first --model-name nano",
)
@click.option("--workers", type=WORKERS, help="how many workers [4, or the preset's]")
@click.option("--on", type=Checked(cluster_address), help="run them on a Ray cluster: ray, or ray:HOST:PORT")
@click.option("--cpus-per-worker", cls=Rare, type=decimal(0.01, 1024), help="cores of a worker on the cluster [1]")
@click.option("--gpus-per-worker", cls=Rare, type=Checked(gpus), help="GPUs of a worker on the cluster, such as 0.25 [0]")
@click.option("--preset", type=Checked(values.choice(*GPU_PRESETS)), help="settings for one GPU, see docs/operating.md")
@click.option("--follow", cls=Rare, is_flag=True, help="show every node's output, each line with its name")
@web_option
@correct_option
def swarm(
    workers: int | None,
    on: str | None,
    cpus_per_worker: float | None,
    gpus_per_worker: float | None,
    preset: str | None,
    follow: bool,
    web: bool,
    correct: bool,
    **flags: str | None,
) -> None:
    """Run a coordinator and workers on this machine or a cluster.

    They run until the last round or Ctrl-C. Start it again to go on.
    """
    given = load_settings(flags)
    if on:
        configuration.require(given, "store")
    elif (cpus_per_worker or gpus_per_worker) is not None:
        raise ConfigError("--cpus-per-worker and --gpus-per-worker are shares of a cluster's machines: give --on ray, too")
    check_libraries()
    from rl_swarm.tools.dashboard import shown_on_a_page
    from rl_swarm.tools.launch import address_of, found, launch_environment, make_launcher, run_shown, what_starts, with_usual_split
    from rl_swarm.tools.memory import refuse_if_too_large
    from rl_swarm.tools.on_ray import Cluster
    from rl_swarm.tools.report import report_after

    usual, settings = GPU_PRESETS[preset] if preset else (4, {})
    workers = workers or usual
    if preset:
        click.echo(f"{preset}: {' '.join(f'{name}={value}' for name, value in settings.items())}")
    environment = launch_environment({**settings, **os.environ}, flags)
    environment, sharing = with_usual_split(environment, workers)
    loaded, again = configuration.load(environment), to_repeat(configuration.load(os.environ, flags))
    cluster = Cluster(on, cpus_per_worker or 1.0, gpus_per_worker or 0.0) if on else None
    with cluster.connected() if cluster else nullcontext():
        if cluster:
            sharing += cluster.what_fits(workers)
        else:
            warn(refuse_if_too_large(environment, loaded, workers))
        environment = found(environment, correct=correct, say=click.echo)
        launcher = (cluster.launcher if cluster else make_launcher)(environment, workers, follow=follow)
        named = "EXPERIMENT_NAME" in os.environ or bool(flags["experiment"])
        for line in (*sharing, *what_starts(environment, workers, named)):
            click.echo(visible(line))
        click.echo(f"others join with: rl-swarm join {address_of(configuration.load(environment))}")
        with shown_on_a_page(web, environment, click.echo):
            run_shown(
                launcher, loaded, make_console(), again, lambda outcome: report_after(outcome, environment, program(), click.echo)
            )


@command(
    settings=(*NODE, "model", "tasks", *SHARING),
    example="rl-swarm work --model-name nano\nrl-swarm work --gdrive-path ./rl-swarm-data --experiment first --node-id w1",
)
@correct_option
def work(correct: bool, **flags: str | None) -> None:
    """Train a model as one worker of an experiment.

    Without a shared folder it trains alone. Ctrl-C saves a checkpoint; start it again to go on.
    """
    run_node(flags | {"role": "worker"}, correct)


@command(
    settings=("store", "experiment", "model", "tasks", *SHARING),
    example="rl-swarm coordinate --gdrive-path ./rl-swarm-data --experiment first \\\n"
    "  --model-name nano --num-train-samples 4 --num-transplant-trees 12",
)
@correct_option
def coordinate(correct: bool, **flags: str | None) -> None:
    """Announce rounds for an experiment; loads no model.

    The first node of an experiment, of whatever kind, settles model, tasks and rounds for all.
    """
    run_node(flags | {"role": "coordinator"}, correct)


def _answer_config_name(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        warn([f"--config-name {value} has no effect: there are no configuration files, 'rl-swarm config' shows all settings"])


@command(settings=("role", *NODE), example="rl-swarm node --node-role worker --model-name nano", hidden=True)
@correct_option
@click.option("--config-name", hidden=True, expose_value=False, callback=_answer_config_name)
def node(correct: bool, **flags: str | None) -> None:
    """Coordinate or work, as NODE_ROLE says."""
    run_node(flags, correct)


def run_node(flags: Flags, correct: bool = False) -> None:
    sleep_when_idle(os.environ)  # before anything imports torch
    check_libraries(configuration.load(os.environ, flags).role)
    from rl_swarm.node.assembly import make_coordinator, open_node
    from rl_swarm.node.vetting import vet
    from rl_swarm.tasks import tasks_version, warm_up

    node = open_node(os.environ, flags, tasks_version=tasks_version(), vet=vet, correct=correct)

    def learn() -> str:
        node.journal.say(f"{node.local.node_id}: loading libraries")
        node.journal.state("loading libraries", -1)
        warm_up()  # reasoning-gym, in a process of its own, while this one loads torch
        with node.stop.at_once():
            from rl_swarm.node.learner import make_learning_worker
            from rl_swarm.tools.push import make_pusher

        return make_learning_worker(node, make_pusher).run()

    outcome = node.run(make_coordinator(node).run if node.config.role == "coordinator" else learn)
    if node.launcher is None:  # a launcher speaks for its nodes
        for line in what_next(node.config) if outcome == "complete" else resuming(node.config, node.experiment.settings):
            node.journal.show(line)


def refuse_if_complete(store: "Store", layout: "Layout", found: "Experiment", ours: configuration.Config) -> None:
    """Stop somebody who would join a run that is over: one more round would only change its figures."""
    from rl_swarm.swarm import experiment as experiments
    from rl_swarm.swarm.rounds import Rounds

    state = Rounds(store, layout, signatures=experiments.reader(store, layout)[1]).read_current()
    ends_at = configuration.load({}, shared=found.settings).max_rounds
    if state is not None and state.status == "complete" and ours.max_rounds <= ends_at:
        raise ConfigError(
            f"the experiment {found.experiment!r} is complete, after {counted(ends_at, 'round')}: look at it with "
            "'rl-swarm report', or join with a higher MAX_ROUNDS to go on"
        )


@command(settings=("node_id", "home"), example="rl-swarm join ./rl-swarm-data/first --node-id w2")
@click.argument("address", metavar="STORE/EXPERIMENT[#KEY]")
def join(address: str, **flags: str | None) -> None:
    """Take part in somebody's experiment: one string is enough.

    Works with the experiment's settings. With the founder's public KEY, only what the founder or its author has signed is believed.
    """
    from rl_swarm.swarm import experiment as experiments

    path, _, founder = address.rpartition("#") if "#" in address else (address, "", None)
    place, _, experiment = path.rstrip("/").rpartition("/")
    place = place.removesuffix("/experiments")  # the folder of an experiment, as a report names it
    if not place:
        raise ConfigError(
            f"the address must be STORE/EXPERIMENT or STORE/EXPERIMENT#KEY, got {address!r}: for instance ./data/demo"
        )
    if founder is not None:
        values.read("KEY, after the # of the address,", values.founder, founder)
    flags |= {"store": place, "experiment": experiment, "role": "worker"} | ({"founder": founder} if founder is not None else {})
    loaded, store, layout = open_run(flags)
    found = experiments.existing(store, layout, loaded.founder)
    refuse_if_complete(store, layout, found, configuration.load(os.environ, flags, found.settings))
    click.echo("this is what you take part in:")
    for name, value in experiments.asks_for(found, loaded.founder):
        click.echo(visible(f"  {name:<11}{one_line(value, most=1000)}"))
    run_node(flags)
