"""A process that archives old rollouts of everyone until nothing is left to do, slowly, so that it can be killed in the middle.

    python -m tests.support.cleaner STORE NODE_ID NEWEST LOCAL SECONDS

It prints a line when it begins. SECONDS is how long each change of the store takes.
"""

import sys
import time
from pathlib import Path

from rl_swarm.config import load
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.retention import retention_of
from rl_swarm.swarm.signatures import Signatures


class Slow(FolderStore):
    seconds = 0.0

    def _put(self, key: str, data: bytes) -> bool:
        time.sleep(self.seconds)
        return super()._put(key, data)

    def _delete(self, key: str) -> None:
        time.sleep(self.seconds)
        super()._delete(key)


def main(folder: str, node_id: str, newest: int, local: bool, seconds: float) -> None:
    store = Slow(Path(folder), local=local)
    store.seconds = seconds
    settings = {"CLEANUP_ENABLED": "true", "KEEP_LAST_N_ROUNDS": "5", "ARCHIVE_OLD": "true"}
    environment = {f"ROLLOUT_{name}": value for name, value in settings.items()} | {"NODE_ID": node_id, "NODE_ROLE": "coordinator"}
    print("cleaning", flush=True)
    for _ in range(2):  # on a mount the second look removes the folders
        config, layout = load(environment), Layout("trial")
        retention = retention_of(config, store, layout, store.clock, Signatures(), lambda *event, **details: None)
        retention.reached(newest)
        while retention.due:
            retention.clean()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True", float(sys.argv[5]))
