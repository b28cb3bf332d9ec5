"""Assemble what learns from a node's settings: tasks, model, policy, trainer, checkpoints, evaluation."""

from dataclasses import dataclass
from pathlib import Path

from rl_swarm.checkpoint import Checkpoints
from rl_swarm.config import Config
from rl_swarm.errors import StoreAway, StoreError
from rl_swarm.evaluation import HeldOut
from rl_swarm.models import load
from rl_swarm.node import Node, make_worker
from rl_swarm.policy import Policy
from rl_swarm.push import make_pusher
from rl_swarm.store import Store
from rl_swarm.swarm.layout import Layout, round_of_folder
from rl_swarm.tasks import Tasks, tasks_of
from rl_swarm.trainer import Trainer, TrainerSettings
from rl_swarm.worker import Worker

KEPT = 2


@dataclass(frozen=True)
class Learner:
    tasks: Tasks
    policy: Policy
    trainer: Trainer


def load_policy(config: Config) -> Policy:
    """The base model of a node; raises ModelError if it cannot be loaded here."""
    loaded = load(
        config.model,
        cpu_only=config.cpu_only,
        dtype=config.dtype,
        lora_rank=config.lora_rank,
        token=config.hub_token,
        seed=config.seed,
    )
    return Policy(
        loaded.model,
        loaded.tokenizer,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        device=loaded.device,
        name=loaded.name,
    )


def make_learner(config: Config, node_id: str) -> Learner:
    """Tasks and model of one node; raises ConfigError or ModelError before any training begins."""
    tasks = Tasks(tasks_of(config), seed=config.seed, node_id=node_id)
    policy = load_policy(config)
    policy.check_fits(tasks.held_out())
    trainer = Trainer(policy, TrainerSettings(learning_rate=config.learning_rate, correction=config.correction))
    return Learner(tasks, policy, trainer)


def make_learning_worker(node: Node) -> Worker:
    node.journal.say(f"node {node.local.node_id}: loading {node.config.model}")
    learner = make_learner(node.config, node.local.node_id)
    worker = make_worker(
        node,
        tasks=learner.tasks,
        policy=learner.policy,
        trainer=learner.trainer,
        checkpoints=make_checkpoints(node),
        evaluate=HeldOut(learner.tasks, learner.policy),
        push=make_pusher(node, learner.policy),
    )
    node.journal.event("model_loaded", model=learner.policy.name, device=str(learner.policy.device))
    return worker


def make_checkpoints(node: Node) -> Checkpoints:
    """On the local disk, and from there to the store, where the last two stay."""
    node_id, layout = node.local.node_id, node.layout
    uploaded = stored_rounds(node.store, layout, node_id)

    def upload(number: int, path: Path) -> None:
        if number not in uploaded:
            uploaded.append(number)
        outdated = [uploaded.pop(0) for _ in range(len(uploaded) - KEPT)]
        node.publisher.upload(layout.checkpoint(number, node_id), path, tuple(layout.checkpoint(old, node_id) for old in outdated))

    def fetch(folder: Path) -> None:
        """Bring what the store has; a checkpoint that cannot be had now is as if it were not there, and that is said."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in stored_rounds(node.store, layout, node_id)[-KEPT:]:
            try:
                node.store.get_file(layout.checkpoint(number, node_id), folder / Checkpoints.name(number), limit=1 << 40)
            except StoreError as error:
                node.journal.say(f"the checkpoint of round {number} could not be fetched from the store: {error}")

    checkpoints = Checkpoints(node.local.checkpoints, keep=KEPT, upload=upload, fetch=fetch)
    if uploaded and uploaded[-1] > checkpoints.newest():  # this node went on elsewhere meanwhile
        fetch(node.local.checkpoints)
    return checkpoints


def stored_rounds(store: Store, layout: Layout, node_id: str) -> list[int]:
    """Rounds of which the store has a checkpoint of this node, oldest first; none while the store is away."""
    try:
        numbers = [number for number in map(round_of_folder, store.list(layout.checkpoints)) if number is not None]
        return sorted(number for number in numbers if f"{node_id}.pt" in store.list(layout.checkpoint_folder(number)))
    except StoreAway:
        return []
