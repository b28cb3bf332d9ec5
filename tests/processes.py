"""Start stand-in nodes as real processes and look at what they left in the folder."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rl_swarm import progress
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.layout import Layout, round_of_file
from rl_swarm.swarm.rounds import read_reward, rounds_with_rewards, submitted

ROOT = Path(__file__).parent.parent


class LocalSwarm:
    """Nodes of one experiment on one folder; everything started here is ended by `close`."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.folder = tmp_path / "store"
        self.folder.mkdir(exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "GDRIVE_PATH": str(self.folder),
            "EXPERIMENT_NAME": "trial",
            "RL_SWARM_HOME": str(tmp_path / "home"),
            "MODEL_NAME": "stand-in",
            **{name: str(value) for name, value in settings.items()},
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.layout = Layout("trial")

    def start(self, node_id: str, role: str = "worker", **settings: Any) -> subprocess.Popen[bytes]:
        environment = self.environment | {"NODE_ID": node_id, "NODE_ROLE": role} | {k: str(v) for k, v in settings.items()}
        with (self.folder.parent / f"{node_id}.console").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.standin_node"], env=environment, cwd=ROOT, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def console(self, node_id: str) -> str:
        return (self.folder.parent / f"{node_id}.console").read_text()

    @property
    def store(self) -> FolderStore:
        return FolderStore(self.folder)

    def wait_for_round(self, number: int, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while number not in rounds_with_rewards(self.store, self.layout):
            assert time.monotonic() < deadline, f"round {number} was not reached in {seconds} s"
            time.sleep(0.05)

    def wait(self, process: subprocess.Popen[bytes], seconds: float = 60) -> int:
        return process.wait(seconds)

    def announced(self) -> list[int]:
        return sorted(number for number in map(round_of_file, self.store.list(self.layout.states)) if number is not None)

    def rewards(self) -> dict[tuple[int, str], float]:
        """Every reward in the store by round and node; each file must be readable."""
        found = {}
        for number in rounds_with_rewards(self.store, self.layout):
            for node_id in submitted(self.store, self.layout, number):
                reward = read_reward(self.store, self.layout, number, node_id)
                assert reward is not None, f"reward of {node_id} for round {number} cannot be read"
                assert (reward.round, reward.peer_id) == (number, node_id)
                found[number, node_id] = reward.reward
        return found

    def metrics(self, node_id: str) -> list[dict[str, Any]]:
        return progress.metrics(self.store, self.layout, node_id)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
