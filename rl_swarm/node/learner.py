"""Assemble the parts of a node that learn: tasks, model, policy, trainer, evaluation and checkpoints."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from rl_swarm.config import PREFIXES, Config
from rl_swarm.document import SCHEMA, SMALL_BYTES, Count, seal, unseal
from rl_swarm.errors import BadDocument, CheckpointError, ModelError, NotFound, StoreAway
from rl_swarm.learning.checkpoint import KEPT, Checkpoints, Elsewhere, checksum, most_bytes
from rl_swarm.learning.evaluation import HeldOut
from rl_swarm.learning.models import load
from rl_swarm.learning.models.hardware import SharedCores, resume_threads
from rl_swarm.learning.policy import Policy, Prompting
from rl_swarm.learning.trainer import Trainer
from rl_swarm.node.assembly import Node, make_worker
from rl_swarm.node.local import workers_here
from rl_swarm.node.worker import Learner, Push, Worker
from rl_swarm.store import Store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout, node_of_checkpoint, node_of_file, recognised, round_of_folder
from rl_swarm.swarm.membership import Membership
from rl_swarm.tasks import Tasks, tasks_of

MOST_TRIED = 4  # checkpoints read from the store, so that bad ones cannot keep a node busy for long
MOST_SEARCHED = 256  # rounds that a signing node searches for its own signatures


def load_policy(config: Config) -> Policy:
    """Load the base model of a node; raise ModelError if it cannot be loaded here."""
    if config.sources.get("model") == "experiment" and config.model != "nano" and Path(config.model).exists():
        raise ModelError(
            f"MODEL_NAME {config.model!r} of the experiment is a model on the hub, but there is a folder of that name here: "
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
    examples = make_tasks(config).examples(config.prompt_examples) if config.prompt_examples else ()
    return Policy(
        loaded.model,
        loaded.tokenizer,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        device=loaded.device,
        name=loaded.name,
        prompting=Prompting(examples, PREFIXES[config.prefix]),
    )


def make_tasks(config: Config) -> Tasks:
    return Tasks(tasks_of(config), seed=config.seed, node_id=config.node_id or "", format_reward=config.format_reward)


def make_learner(config: Config, say: Callable[[str], None] = lambda line: None) -> Learner:
    """Make the tasks and load the model of one node; raise ConfigError or ModelError before any training begins."""
    tasks = make_tasks(config)
    policy = load_policy(config)
    policy.check_fits(tasks.held_out())
    trainer = Trainer(policy, config.learning_rate, config.correction, partial(resume_threads, say=say))
    return Learner(tasks, policy, trainer, HeldOut(tasks, policy) if tasks.held_out() else None)


def make_learning_worker(node: Node, pusher: Callable[[Node, Policy], Push | None]) -> Worker:
    if node.member and not node.config.external_count:
        node.journal.say(
            "J is 0: this node learns from its own rollouts alone; NUM_TRANSPLANT_TREES=4 takes 4 of its peers' a round"
        )
    node.journal.say(f"loading the model {node.config.model}")
    node.journal.state(f"loading {experiments.public_model(node.config.model)}", -1)
    with node.stop.at_once():  # loading a model, or making held-out questions of a stranger's tasks, may take minutes
        cores = SharedCores(partial(workers_here, node.config), node.clock, node.journal.say)
        cores.begin()
        learner = replace(make_learner(node.config, node.journal.say), cores_changed=cores.changed)
    node.local.remember_model(learner.policy.name)
    node.local.remember_task_files([spec.path for spec in tasks_of(node.config) if spec.path is not None])
    checkpoints = make_checkpoints(node, learner.trainer.trained_bytes)
    worker = make_worker(node, learner, checkpoints, pusher(node, learner.policy))
    node.journal.event("model_loaded", model=learner.policy.name, device=str(learner.policy.device))
    return worker


def make_checkpoints(node: Node, trained_bytes: int) -> Checkpoints:
    """Keep checkpoints on the local disk, and upload each to the store, which keeps the last two.

    A node that signs puts a signed document beside each, and trusts nothing in the store without one.
    """
    node_id, limit, member = node.local.node_id, most_bytes(trained_bytes), node.member
    if member is None:
        return Checkpoints(node.local.checkpoints, limit=limit, say=node.journal.say)
    layout, signatures = member.layout, member.signatures
    stored = _Stored(member, node.config.max_rounds, limit, node.journal.say)
    uploaded = list[int]()

    def upload(number: int, path: Path) -> None:
        if not uploaded and checkpoints.resumed is not None:  # later rounds than that are not this node's, or not of this run
            uploaded.extend(each for each in sorted(stored.rounds) if each <= checkpoints.resumed)
        if number not in uploaded:
            uploaded.append(number)
        outdated = [uploaded.pop(0) for _ in range(len(uploaded) - KEPT)]
        names = [layout.checkpoint(old, node_id) for old in outdated]
        beside = None
        if signatures.identity:
            key = layout.endorsement(number, node_id)
            beside = (key, signatures.sign(key, seal(Endorsement(node_id, number, checksum(path), path.stat().st_size))))
            names += [layout.endorsement(old, node_id) for old in outdated]
        member.publisher.upload(layout.checkpoint(number, node_id), path, tuple(names), beside)

    elsewhere = Elsewhere(f"the store {member.store.url}", node.local.path / "fetched", stored.rounds, stored.fetch)
    checkpoints = Checkpoints(node.local.checkpoints, limit=limit, upload=upload, elsewhere=elsewhere, say=node.journal.say)
    return checkpoints


class Endorsement(msgspec.Struct, frozen=True):
    """The signed document beside a checkpoint in the store: a node that lost its disk resumes from its own and nobody else's."""

    node_id: Annotated[str, Meta(max_length=64)]
    round: int
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    bytes: Count
    schema: int = SCHEMA


class _Stored:
    """The newest checkpoints in the store under this node's name. Anybody may have put them there.

    A node that signs fetches only what it has signed, and at most the signed number of bytes. Any other node fetches a few files:
    the first may have `limit` bytes, and all others together as many, since a sparse file costs a stranger nothing.
    """

    def __init__(self, member: Membership, max_rounds: int, limit: int, say: Callable[[str], None]) -> None:
        self._store, self._layout, self._node_id = member.store, member.layout, member.node_id
        self._signatures = member.signatures if member.signatures.identity else None
        self._limit = self._left = limit
        self._tried = False
        self.rounds: list[int] = []  # newest first
        with contextlib.suppress(StoreAway):
            there = stored_rounds(self._store, self._layout, self._node_id, max_rounds, signed=self._signatures is not None)
            if self._signatures:
                there = self._endorsed(itertools.islice(there, MOST_SEARCHED), say)
            self.rounds.extend(itertools.islice(there, MOST_TRIED))

    def fetch(self, number: int, path: Path) -> None:
        key = self._layout.checkpoint(number, self._node_id)
        if self._signatures:
            signed = self._endorsement(number)
            if not path.exists():
                self._store.get_file(key, path, limit=min(self._limit, signed.bytes))
            if signed.sha256 != checksum(path):
                raise CheckpointError("it is not the checkpoint that this node has signed")
        elif not path.exists():
            self._store.get_file(key, path, limit=self._left if self._tried else self._limit)
            self._left -= path.stat().st_size if self._tried else 0
            self._tried = True

    def _endorsed(self, rounds: Iterable[int], say: Callable[[str], None]) -> Iterator[int]:
        told = False
        for number in rounds:
            try:
                self._endorsement(number)
                yield number
            except CheckpointError as error:
                if not told:
                    say(f"a checkpoint was not used, nor others like it: round {number} of the store {self._store.url}: {error}")
                told = True

    def _endorsement(self, number: int) -> Endorsement:
        """Read this node's endorsement of its checkpoint of a round; raise CheckpointError if it has not signed one."""
        assert self._signatures is not None
        key = self._layout.endorsement(number, self._node_id)
        try:
            data = self._store.get(key, limit=SMALL_BYTES, listed=True)
            found = unseal(data, Endorsement)
        except (NotFound, BadDocument) as error:
            raise CheckpointError(f"this node signs, and nothing signed says that the checkpoint is its own ({error})") from None
        if not self._signatures.mine(key, data):
            raise CheckpointError(f"{key} is not signed with this node's key")
        if (found.node_id, found.round) != (self._node_id, number):
            raise CheckpointError(f"{key} is of another checkpoint")
        return found


def stored_rounds(store: Store, layout: Layout, node_id: str, last: int, signed: bool = False) -> Iterator[int]:
    """Rounds up to `last` for which the store has a checkpoint of this node, newest first; with `signed`, also its document."""
    for number in checkpoint_rounds(store, layout, last):
        names = store.list(layout.checkpoint_folder(number))
        if node_id in map(node_of_checkpoint, names) and (not signed or node_id in map(node_of_file, names)):
            yield number


def checkpoint_rounds(store: Store, layout: Layout, last: int) -> list[int]:
    """Rounds up to `last` that have a folder of checkpoints in the store, newest first."""
    numbers = recognised(round_of_folder, store.list(layout.checkpoints))
    return sorted((number for number in numbers if number <= last), reverse=True)
