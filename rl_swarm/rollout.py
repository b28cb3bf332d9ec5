"""Question, Completion, Rollout, and the bundle in which a node publishes its rollouts of one round.

The file keeps the shape that people know (`peer_id, round, stage, timestamp, rollouts: {"0": [{prompt, response, reward}]}`) and
adds what a reader needs to check it. Reading validates types, ranges and sizes; whether a claim is *true* is for `tasks/`.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rl_swarm.document import SCHEMA, seal, unseal
from rl_swarm.errors import BadDocument, Incomplete

BUNDLE_BYTES = 8 << 20
LONGEST_TEXT = 200_000
MOST_ROLLOUTS = 1024
TOLERANCE = 0.05  # of rewards: a rollout with a smaller range of them is not informative
GROUP_LIMITS = (2, 256)


@dataclass(frozen=True)
class Question:
    """Enough to regenerate a question; `task` is None where only its text is known (the plain documented form)."""

    prompt: str
    answer: str | None = None
    task: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    index: int = 0

    @property
    def text_id(self) -> str:
        """Identity of a question: the hash of its text, since different seeds and indices can yield the same text."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Completion:
    """One decoded answer. Token ids stay with the node that sampled them."""

    text: str
    reward: float = 0.0
    finish: str = "stop"
    tokens: int = 0
    logprob: float | None = None
    token_ids: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Rollout:
    """One question with all completions of one node: the unit that I and J count."""

    question: Question
    completions: tuple[Completion, ...]
    node_id: str
    round: int
    stage: int = 0
    slot: int = 0

    @property
    def id(self) -> str:
        return f"{self.node_id}/{self.round}/{self.stage}/{self.slot}"

    @property
    def text_id(self) -> str:
        """Identity of what is trained on: question and completions in any order, whoever sent them with whatever seed and round."""
        texts = sorted(hashlib.sha256(done.text.encode("utf-8", "surrogatepass")).digest() for done in self.completions)
        return hashlib.sha256(b"".join([self.question.text_id.encode(), *texts])).hexdigest()[:16]

    @property
    def rewards(self) -> list[float]:
        return [completion.reward for completion in self.completions]

    @property
    def informative(self) -> bool:
        """Whether the rewards differ enough to say which completion was better (arXiv:2509.08721 §5 drops the rest).

        The range is compared, not the standard deviation, so that the meaning does not depend on the size of the group. Floors and
        crumbs of partial credit that lie closer together than the tolerance teach nothing.
        """
        return max(self.rewards) - min(self.rewards) >= TOLERANCE


@dataclass(frozen=True)
class Bundle:
    """What one node publishes at once: some or all of its rollouts of one round and stage."""

    experiment: str
    node_id: str
    round: int
    rollouts: tuple[Rollout, ...]
    stage: int = 0
    timestamp: float = 0.0
    model: str = ""
    policy_version: int = 0
    tasks_version: str = ""


Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Slot = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,5})$")]


class _Completion(msgspec.Struct):
    prompt: Text
    response: Text
    reward: float
    finish: Annotated[str, Meta(max_length=16)] = "stop"
    tokens: Count = 0
    logprob: float | None = None


class _Question(msgspec.Struct):
    task: Annotated[str, Meta(max_length=200)]
    config: dict[str, Any]
    seed: Count
    index: Count
    answer: Text | None


class _Bundle(msgspec.Struct):
    schema: int
    peer_id: Name
    experiment: Name
    round: Count
    stage: Count
    timestamp: float
    model: Annotated[str, Meta(max_length=200)]
    policy_version: Count
    tasks_version: Annotated[str, Meta(max_length=200)]
    questions: Annotated[dict[Slot, _Question], Meta(max_length=MOST_ROLLOUTS)]
    rollouts: Annotated[dict[Slot, Annotated[list[_Completion], Meta(max_length=GROUP_LIMITS[1])]], Meta(max_length=MOST_ROLLOUTS)]


class _PlainBundle(msgspec.Struct):
    """The documented form without our additions; one that has a schema number is a bundle of ours that is not all there."""

    peer_id: Name
    round: Count
    stage: Count
    timestamp: float
    rollouts: dict[str, list[_Completion]]
    schema: int | None = None


def encode(bundle: Bundle) -> bytes:
    questions, rollouts = {}, {}
    for rollout in bundle.rollouts:
        asked = rollout.question
        if asked.task is None:
            raise ValueError(f"rollout {rollout.id} has no task: only questions that peers can regenerate are published")
        slot = str(rollout.slot)
        questions[slot] = _Question(asked.task, asked.config, asked.seed, asked.index, asked.answer)
        rollouts[slot] = [
            _Completion(asked.prompt, done.text, done.reward, done.finish, done.tokens, done.logprob)
            for done in rollout.completions
        ]
    return seal(
        _Bundle(
            schema=SCHEMA,
            peer_id=bundle.node_id,
            experiment=bundle.experiment,
            round=bundle.round,
            stage=bundle.stage,
            timestamp=bundle.timestamp,
            model=bundle.model,
            policy_version=bundle.policy_version,
            tasks_version=bundle.tasks_version,
            questions=questions,
            rollouts=rollouts,
        )
    )


def decode(data: bytes) -> Bundle:
    """Read a sealed bundle; raise Incomplete or BadDocument."""
    wire = unseal(data, _Bundle, BUNDLE_BYTES)
    if wire.questions.keys() != wire.rollouts.keys():
        raise BadDocument("malformed", "questions and rollouts have different slots")
    rollouts = []
    for slot, group in wire.rollouts.items():
        asked = wire.questions[slot]
        question = Question(_common_prompt(group), asked.answer, asked.task, asked.config, asked.seed, asked.index)
        rollouts.append(Rollout(question, _completions(group), wire.peer_id, wire.round, wire.stage, int(slot)))
    return Bundle(
        experiment=wire.experiment,
        node_id=wire.peer_id,
        round=wire.round,
        stage=wire.stage,
        timestamp=wire.timestamp,
        model=wire.model,
        policy_version=wire.policy_version,
        tasks_version=wire.tasks_version,
        rollouts=tuple(rollouts),
    )


def decode_plain(data: bytes) -> Bundle:
    """Read the plain documented form, which has no checksum and no regenerable question: for showing, never for training."""
    if len(data) > BUNDLE_BYTES:
        raise BadDocument("too_large", f"{len(data)} bytes, the limit is {BUNDLE_BYTES}")
    try:
        wire = msgspec.json.decode(data, type=_PlainBundle)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Incomplete("incomplete", str(error)) from None
    if wire.schema is not None:
        raise Incomplete("incomplete", "the closing checksum is missing")
    rollouts = tuple(
        Rollout(Question(_common_prompt(group)), _completions(group), wire.peer_id, wire.round, wire.stage, slot)
        for slot, group in enumerate(wire.rollouts.values())
        if group
    )
    return Bundle("", wire.peer_id, wire.round, rollouts, wire.stage, wire.timestamp)


def _common_prompt(group: list[_Completion]) -> str:
    if len({done.prompt for done in group}) != 1:
        raise BadDocument("malformed", f"a rollout must have one prompt, got {len({done.prompt for done in group})}")
    return group[0].prompt


def _completions(group: list[_Completion]) -> tuple[Completion, ...]:
    return tuple(Completion(done.response, done.reward, done.finish, done.tokens, done.logprob) for done in group)
