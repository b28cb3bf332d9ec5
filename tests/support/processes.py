"""Start stand-in nodes as real processes and look at what they left in the folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rl_swarm.document import unseal
from rl_swarm.errors import BadDocument
from rl_swarm.rollout import decode
from rl_swarm.store import Store
from rl_swarm.store.folder import FolderStore
from rl_swarm.swarm.experiment import Experiment
from rl_swarm.swarm.layout import Layout, round_of_file
from rl_swarm.swarm.rounds import Announcement, CurrentState, Reward, read_reward, rounds_with_rewards, submitted
from tests.support import rows

ROOT = Path(__file__).parents[2]
KINDS: dict[str, Callable[[bytes], Any]] = {
    "/rollouts/": decode,
    "/rewards/": partial(unseal, kind=Reward),
    "/state/round_": partial(unseal, kind=Announcement),
    "/state/current_state": partial(unseal, kind=CurrentState),
    "/experiment.json": partial(unseal, kind=Experiment),
}


def descendants(pid: int) -> set[int]:
    """Return a process and its running descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class LocalSwarm:
    """Nodes of one experiment on one folder; everything started here is ended by `close`. `program` is what a node runs."""

    program: tuple[str, ...] = ("tests.support.standin_node",)

    def __init__(self, tmp_path: Path, folder: Path | None = None, **settings: Any) -> None:
        self.folder = folder or tmp_path / "store"
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
        return self.spawn(node_id, [sys.executable, "-m", *self.program], environment)

    def spawn(
        self, name: str, command: Sequence[str | bytes], environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start any command, with its output in the file that `console` reads."""
        with (self.folder.parent / f"{name}.console").open("ab") as log:
            process = subprocess.Popen(command, env=environment, **({"cwd": ROOT, "stdout": log, "stderr": log} | options))
        self.processes.append(process)
        return process

    def console(self, node_id: str) -> str:
        return (self.folder.parent / f"{node_id}.console").read_text(errors="replace")

    @property
    def store(self) -> Store:
        return FolderStore(self.folder)

    def wait_for_round(self, number: int, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while number not in rounds_with_rewards(self.store, self.layout):
            assert time.monotonic() < deadline, f"round {number} was not reached in {seconds} s"
            time.sleep(0.05)

    def wait_for_reward(self, number: int, seconds: float = 30) -> None:
        """Wait for a submitted reward, not only for the folder, which anybody can make."""
        deadline = time.monotonic() + seconds
        while not submitted(self.store, self.layout, number, 0):
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
            for node_id in submitted(self.store, self.layout, number, 0):
                reward = read_reward(self.store, self.layout, number, 0, node_id)
                assert reward is not None, f"reward of {node_id} for round {number} cannot be read"
                assert (reward.round, reward.peer_id) == (number, node_id)
                found[number, node_id] = reward.reward
        return found

    def unreadable(self) -> list[str]:
        """Documents in the folder that their own reader refuses; names that begin with a dot are nobody's documents."""
        found = []
        for path in sorted(path for path in self.folder.rglob("*.json") if not path.name.startswith(".")):
            kind = next((kind for part, kind in KINDS.items() if part in path.relative_to(self.folder).as_posix()), None)
            try:
                if kind is None:
                    json.loads(path.read_bytes())
                else:
                    kind(path.read_bytes())
            except (BadDocument, ValueError) as error:
                found.append(f"{path.relative_to(self.folder)}: {error}")
        return found

    def metrics(self, node_id: str) -> list[dict[str, Any]]:
        return rows.metrics(self.store, self.layout, node_id)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
