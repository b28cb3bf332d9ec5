"""Assemble what learns from a node's settings: tasks, model, policy, trainer, checkpoints, evaluation."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rl_swarm.config import Config
from rl_swarm.errors import ModelError, StoreAway
from rl_swarm.learning.checkpoint import Checkpoints, Elsewhere, checksum, most_bytes
from rl_swarm.learning.evaluation import HeldOut
from rl_swarm.learning.models import load
from rl_swarm.learning.policy import Policy
from rl_swarm.learning.trainer import Trainer, TrainerSettings
from rl_swarm.node.assembly import Node, make_worker
from rl_swarm.node.worker import Learner, Push, Worker
from rl_swarm.store import Store
from rl_swarm.swarm.endorsement import check_endorsed, endorse
from rl_swarm.swarm.layout import Layout, node_of_checkpoint, round_of_folder
from rl_swarm.tasks import Tasks, tasks_of

KEPT = 2
MOST_TRIED = 16  # checkpoints of the store, so that no number of bad ones keeps a node busy for long


def load_policy(config: Config) -> Policy:
    """The base model of a node; raises ModelError if it cannot be loaded here."""
    if config.sources.get("model") == "experiment" and config.model != "nano" and Path(config.model).exists():
        raise ModelError(
            f"MODEL_NAME {config.model!r} of the experiment is a model on the hub, and a folder of that name lies here: "
            "start in another folder, or set MODEL_NAME yourself"
        )
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


@dataclass(frozen=True)
class LoadedLearner(Learner):
    """With a real model, whose parts can do more than the loop asks of them."""

    tasks: Tasks
    policy: Policy
    trainer: Trainer


def make_learner(config: Config, node_id: str) -> LoadedLearner:
    """Tasks and model of one node; raises ConfigError or ModelError before any training begins."""
    tasks = Tasks(tasks_of(config), seed=config.seed, node_id=node_id)
    policy = load_policy(config)
    policy.check_fits(tasks.held_out())
    trainer = Trainer(policy, TrainerSettings(learning_rate=config.learning_rate, correction=config.correction))
    return LoadedLearner(tasks, policy, trainer, HeldOut(tasks, policy))


def make_learning_worker(node: Node, pusher: Callable[[Node, Policy], Push | None]) -> Worker:
    node.journal.say(f"node {node.local.node_id}: loading {node.config.model}")
    learner = make_learner(node.config, node.local.node_id)
    node.local.remember_model(learner.policy.name)
    checkpoints = make_checkpoints(node, learner.trainer.trained_bytes)
    worker = make_worker(node, learner, checkpoints, pusher(node, learner.policy))
    node.journal.event("model_loaded", model=learner.policy.name, device=str(learner.policy.device))
    return worker


def make_checkpoints(node: Node, trained_bytes: int) -> Checkpoints:
    """On the local disk, and from there to the store, where the last two stay.

    A node that signs puts a signed document beside each, and takes nothing from the store without one.
    """
    node_id, limit, member = node.local.node_id, most_bytes(trained_bytes), node.member
    if member is None:
        return Checkpoints(node.local.checkpoints, keep=KEPT, limit=limit, say=node.journal.say)
    store, layout, signatures = member.store, member.layout, member.signatures
    stored, uploaded = list[int](), list[int]()
    with contextlib.suppress(StoreAway):
        stored.extend(itertools.islice(stored_rounds(store, layout, node_id, node.config.max_rounds), MOST_TRIED))

    def upload(number: int, path: Path) -> None:
        if not uploaded:  # what is beyond the round that this node went on from is not its own, or not of this run
            uploaded.extend(each for each in sorted(stored) if checkpoints.resumed is not None and each <= checkpoints.resumed)
        if number not in uploaded:
            uploaded.append(number)
        outdated = [uploaded.pop(0) for _ in range(len(uploaded) - KEPT)]
        names = [layout.checkpoint(old, node_id) for old in outdated]
        beside = None
        if signatures.identity:
            beside = (layout.endorsement(number, node_id), endorse(layout, node_id, number, checksum(path), signatures))
            names += [layout.endorsement(old, node_id) for old in outdated]
        member.publisher.upload(layout.checkpoint(number, node_id), path, tuple(names), beside)

    def fetch(number: int, path: Path) -> None:
        store.get_file(layout.checkpoint(number, node_id), path, limit=limit)

    def check_origin(number: int, path: Path) -> None:
        if signatures.identity:
            check_endorsed(store, layout, node_id, number, checksum(path), signatures)

    elsewhere = Elsewhere(f"the store {store.url}", node.local.fetched, stored, fetch, check_origin)
    checkpoints = Checkpoints(
        node.local.checkpoints, keep=KEPT, limit=limit, upload=upload, elsewhere=elsewhere, say=node.journal.say
    )
    return checkpoints


def stored_rounds(store: Store, layout: Layout, node_id: str, last: int) -> Iterator[int]:
    """Rounds up to `last` of which the store has a checkpoint of this node, newest first."""
    for number in checkpoint_rounds(store, layout, last):
        if node_id in map(node_of_checkpoint, store.list(layout.checkpoint_folder(number))):
            yield number


def checkpoint_rounds(store: Store, layout: Layout, last: int) -> list[int]:
    """Rounds up to `last` of which the store may have checkpoints, newest first."""
    numbers = set(map(round_of_folder, store.list(layout.checkpoints)))
    return sorted((number for number in numbers if number is not None and number <= last), reverse=True)
