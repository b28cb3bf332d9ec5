"""Run a swarm of small models on this machine, show it live, and report what they learnt.

The demo only starts nodes and reads what they publish. It writes its report beside that.
"""

import os
from collections.abc import Mapping
from itertools import count

from rich.console import Console

from rl_swarm.config import Config, load
from rl_swarm.errors import CheckpointError, ConfigError, ModelError
from rl_swarm.runs.examples import Example, published_examples
from rl_swarm.runs.following import Following
from rl_swarm.runs.summary import Summary, summarise
from rl_swarm.show.card import Places, sections, show_card
from rl_swarm.show.live import LiveView
from rl_swarm.show.report import PAGE, PICTURE, make_report
from rl_swarm.store import Store, open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import Rounds
from rl_swarm.tools.launch import found, launch_environment, make_launcher

SETTINGS = {
    "EXPERIMENT_NAME": "demo",
    "MODEL_NAME": "nano",
    "MAX_ROUNDS": "60",
    "NUM_TRAIN_SAMPLES": "4",
    "NUM_TRANSPLANT_TREES": "4",
    "NUM_GENERATIONS": "8",
    "COORDINATOR_ROUND_INTERVAL": "20",
}

Flags = Mapping[str, str | None]


def run_demo(given: Mapping[str, str], flags: Flags, workers: int, program: str, console: Console) -> str:
    """Run the swarm until its last round or Ctrl-C, then show the results; return 'complete' or 'stopped'.

    Raises ConfigError for a wrong setting and NodeFailed if a node cannot be kept running.
    """
    environment = found(unfinished(launch_environment(SETTINGS | dict(given), flags)))
    config = load(environment)
    following = Following(open_store(config.store_url), Layout(config.experiment_name), config.max_rounds)
    with LiveView(following, console) as view:
        outcome = make_launcher(environment, workers, say=view.say).run(view.tick)
    if outcome == "complete":
        present(environment, config, program, console)
    return outcome


def unfinished(environment: Mapping[str, str]) -> dict[str, str]:
    """Go on with a stopped run, or begin another under the next free name if the last one is complete."""
    config = load(environment)
    store = open_store(config.store_url)
    for number in count(1):
        name = config.experiment_name if number == 1 else f"{config.experiment_name}-{number}"
        layout = Layout(name)
        state = Rounds(store, layout, signatures=experiments.reader(store, layout)).read_current()
        if state is None or state.status != "complete":
            break
    return {**environment, "EXPERIMENT_NAME": name}


def present(environment: Mapping[str, str], config: Config, program: str, console: Console) -> None:
    """Write the report of a run and show its card."""
    console.print("Reading the run, and asking the model before and after training", highlight=False)
    store, layout = open_store(config.store_url), Layout(config.experiment_name)
    summary = summarise(store, layout)
    examples = make_examples(environment, store, layout, summary)
    for name, data in make_report(summary, examples).items():
        store.rewrite(layout.report(name), data)
    keys = (layout.root, layout.report(PICTURE), layout.report(PAGE))
    places = Places(nearby(config.store_url), *(nearby(f"{config.store_url}/{key}") for key in keys))
    show_card(summary, sections(summary, examples, places, nearby(program)), console)


def make_examples(environment: Mapping[str, str], store: Store, layout: Layout, summary: Summary) -> list[Example]:
    """Ask the models, or take what the run has published if there is no model to ask."""
    from rl_swarm.tools.ask import asked_examples  # imports torch, which the live view does not need

    of_any_node = {name: value for name, value in environment.items() if name != "NODE_ID"}
    try:
        return asked_examples(of_any_node, {})
    except (ConfigError, CheckpointError, ModelError):
        numbers = sorted({number for points in summary.rewards.values() for number, _ in points})
        return published_examples(store, layout, numbers, [node.node_id for node in summary.nodes])


def nearby(path: str) -> str:
    """Shorten a path to how one would type it here: relative if it lies below this folder."""
    if not os.path.isabs(path):  # also a URL that names no folder
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else os.path.join(".", relative)
