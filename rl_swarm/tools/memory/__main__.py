"""What `check_apart` runs in another process: whether so many workers with the environment's settings fit, as a line of JSON."""

import json
import os
import sys
from dataclasses import asdict

from rl_swarm.config import load
from rl_swarm.tools.memory.fit import check


def main() -> None:
    settings = load(os.environ)
    print(json.dumps(asdict(check(settings.model, int(sys.argv[1]), settings))))
