"""Workers with real models in this process: the shipped loop, tasks, policy and trainer on a memory store."""

from pathlib import Path
from typing import Any

import torch

from rl_swarm.clock import SystemClock
from rl_swarm.config import load
from rl_swarm.learning.checkpoint import Checkpoints
from rl_swarm.learning.evaluation import HeldOut
from rl_swarm.node.journal import Journal
from rl_swarm.node.learner import make_learner
from rl_swarm.node.worker import Worker, WorkerSettings
from rl_swarm.store import Store
from rl_swarm.swarm.exchange import Exchange, ExchangeSettings
from rl_swarm.swarm.layout import Layout
from rl_swarm.swarm.publisher import Publisher
from rl_swarm.swarm.rounds import Rounds

LAYOUT = Layout("trial")


def make_worker(store: Store, folder: Path, node_id: str, **environment: Any) -> Worker:
    torch.set_num_threads(1)
    config = load({"MODEL_NAME": "nano", "CPU_ONLY": "1"} | {name: str(value) for name, value in environment.items()})
    learner = make_learner(config, node_id)
    clock = SystemClock()
    publisher = Publisher(store, folder / node_id / "spool", clock, background=False)
    settings = WorkerSettings(
        node_id=node_id,
        seed=config.seed,
        max_rounds=config.max_rounds,
        own_count=config.own_count,
        external_count=config.external_count,
        group_size=config.group_size,
        checkpoint_interval=config.checkpoint_interval,
        eval_interval=config.eval_interval,
    )
    return Worker(
        settings,
        tasks=learner.tasks,
        policy=learner.policy,
        trainer=learner.trainer,
        rounds=Rounds(store, LAYOUT),
        exchange=Exchange(store, LAYOUT, publisher, learner.tasks.verify, clock, ExchangeSettings(node_id)),
        publisher=publisher,
        journal=Journal(store, LAYOUT, node_id, publisher, clock, console=None),
        checkpoints=Checkpoints(folder / node_id / "checkpoints"),
        clock=clock,
        evaluate=HeldOut(learner.tasks, learner.policy),
    )


def weights(worker: Worker) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in worker.trainer.state()["model"].items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())
