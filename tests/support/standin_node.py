"""A node in a real process: the shipped loops and assembly, with stand-ins for what learns.

    python -m tests.support.standin_node

Settings come from the environment; STANDIN_LOAD_SECONDS is how long it takes until the first round, STANDIN_SECONDS how long a
round's answers take, STANDIN_STOP_SECONDS how long a push at the end.
"""

import os
import sys
import time

from rl_swarm.errors import ConfigError, SwarmError
from rl_swarm.node.assembly import make_coordinator, make_worker, open_node
from rl_swarm.node.worker import Learner
from tests.support.standins import TASKS_VERSION, StandInCheckpoints, StandInPolicy, StandInPush, StandInTasks, StandInTrainer


def main() -> int:
    try:
        run()
    except SwarmError as error:  # as the command line does
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def run() -> None:
    node = open_node(os.environ, {}, tasks_version=TASKS_VERSION)
    if node.config.role == "coordinator":
        node.run(make_coordinator(node).run)
        return
    time.sleep(float(os.environ.get("STANDIN_LOAD_SECONDS", "0")))
    policy = StandInPolicy(float(os.environ.get("STANDIN_SECONDS", "0.2")))
    learner = Learner(StandInTasks(node.local.node_id, node.config.seed), policy, StandInTrainer())
    push = StandInPush(float(os.environ.get("STANDIN_STOP_SECONDS", "0")))
    worker = make_worker(node, learner, StandInCheckpoints(node.local.checkpoints), push)
    node.run(worker.run)


if __name__ == "__main__":
    sys.exit(main())
