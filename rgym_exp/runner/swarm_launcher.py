"""`python -m rgym_exp.runner.swarm_launcher`: `rl-swarm coordinate` or `rl-swarm work`, as NODE_ROLE says, with the same flags."""

import sys

from rl_swarm.cli import main

if __name__ == "__main__":
    main(["node", *sys.argv[1:]])
