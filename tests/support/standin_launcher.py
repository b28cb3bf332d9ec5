"""A launcher of stand-in nodes in a process of its own, so that it can be killed.

    python -m tests.support.standin_launcher

It takes its settings from the environment, as `rl-swarm swarm` does.
"""

import os
import sys

from rl_swarm.errors import SwarmError
from rl_swarm.tools.launch import make_launcher


def main() -> int:
    try:
        launcher = make_launcher(os.environ, 2)
        for node in launcher.nodes:
            node.command = [sys.executable, "-m", "tests.support.standin_node"]
        print(f"swarm {launcher.run()}", flush=True)
    except SwarmError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
