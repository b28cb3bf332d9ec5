"""Run a swarm of small models on this machine, show it live, and report what they learnt.

The demo only starts nodes and reads what they publish.
"""

from collections.abc import Mapping
from itertools import count

from rich.console import Console

from rl_swarm.config import load
from rl_swarm.store import open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.rounds import Rounds
from rl_swarm.tools.dashboard import shown_on_a_page
from rl_swarm.tools.launch import found, launch_environment, make_launcher, run_shown
from rl_swarm.tools.report import report_after

SETTINGS = {
    "EXPERIMENT_NAME": "demo",
    "MODEL_NAME": "nano",
    "MAX_ROUNDS": "300",
    "NUM_TRAIN_SAMPLES": "4",
    "NUM_TRANSPLANT_TREES": "12",  # all that the three others write
    "NUM_GENERATIONS": "8",
    "COORDINATOR_ROUND_INTERVAL": "20",
}

Flags = Mapping[str, str | None]


def run_demo(
    given: Mapping[str, str], flags: Flags, workers: int, program: str, console: Console, again: str, web: bool = False
) -> str:
    """Run the swarm until its last round or Ctrl-C, then report; return 'complete' or 'stopped'. `again` is the command to go on.

    With `web`, it is also shown on a page. Raises ConfigError for a wrong setting and NodeFailed if a node cannot be kept running.
    """
    environment = found(unfinished(launch_environment(SETTINGS | dict(given), flags)))

    def report(outcome: str) -> None:
        report_after(outcome, environment, program, print)

    launcher = make_launcher(environment, workers)
    with shown_on_a_page(web, environment, print):
        return run_shown(launcher, load(environment), console, again, report)


def unfinished(environment: Mapping[str, str]) -> dict[str, str]:
    """Go on with a stopped run, or begin another under the next free name if the last one is complete."""
    config = load(environment)
    store = open_store(config.store_url)
    for number in count(1):
        name = config.experiment_name if number == 1 else f"{config.experiment_name}-{number}"
        layout = Layout(name)
        state = Rounds(store, layout, signatures=experiments.reader(store, layout)[1]).read_current()
        if state is None or state.status != "complete":
            break
    return {**environment, "EXPERIMENT_NAME": name}
