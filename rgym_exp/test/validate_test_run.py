"""`python rgym_exp/test/validate_test_run.py --gdrive-path … --experiment … --rounds 3 --nodes 5`: `rl-swarm validate`."""

import sys

from rl_swarm.cli import main

if __name__ == "__main__":
    main(["validate", *sys.argv[1:]])
