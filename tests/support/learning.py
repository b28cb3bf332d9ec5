"""Workers with real models in this process: the shipped loop, tasks, policy and trainer on a memory store."""

from pathlib import Path
from typing import Any

import torch

from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.learning.checkpoint import Checkpoints
from rl_swarm.node.learner import make_learner
from rl_swarm.node.worker import Worker
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout
from tests.support.members import member_of, worker_of

LAYOUT = Layout("trial")


def make_worker(store: Store, folder: Path, node_id: str, **environment: Any) -> Worker:
    torch.set_num_threads(1)
    config = load(
        {"MODEL_NAME": "nano", "CPU_ONLY": "1", "NODE_ID": node_id} | {name: str(value) for name, value in environment.items()}
    )
    learner = make_learner(config)
    member = member_of(store, folder, node_id, SystemClock())
    return worker_of(member, folder, config, learner, Checkpoints(folder / node_id / "checkpoints"))


def weights(worker: Worker) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in worker.trainer.state()["model"].items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())
