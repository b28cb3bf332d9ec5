"""Question, Completion, Rollout, and the bundle in which a node publishes its rollouts of one round.

The file keeps the documented shape (`peer_id, round, stage, timestamp, rollouts: {"0": [{prompt, response, reward}]}`) and adds
what a reader needs to check it. Reading validates types, ranges and sizes; `tasks/` decides whether a claim is *true*.
"""

import hashlib
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rl_swarm.config import MOST_OWN
from rl_swarm.document import SCHEMA, Count, Label, seal, unseal
from rl_swarm.errors import BadDocument
from rl_swarm.packing import unpacked

BUNDLE_BYTES = 8 << 20
LONGEST_TEXT = 200_000
TOLERANCE = 0.05  # a rollout whose rewards have a smaller range is not informative
GROUP_LIMITS = (2, 256)


@dataclass(frozen=True)
class Question:
    """Enough to regenerate a question; `task` is None if only its text is known."""

    prompt: str
    answer: str | None = None
    task: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    index: int = 0

    @property
    def text_id(self) -> str:
        """Identity of a question: the hash of its text, because different seeds and indices can yield the same text."""
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
    bonus: float = field(default=0.0, compare=False)  # for its form, in training alone; never part of a reward that is reported


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
        """Identity of the text to train on: question and completions in any order, whatever the sender, seed and round."""
        texts = sorted(hashlib.sha256(done.text.encode("utf-8", "surrogatepass")).digest() for done in self.completions)
        return hashlib.sha256(b"".join([self.question.text_id.encode(), *texts])).hexdigest()[:16]

    @property
    def rewards(self) -> list[float]:
        return [completion.reward for completion in self.completions]

    @property
    def values(self) -> list[float]:
        """What the completions are compared by in training: the rewards, and the bonus for the form if there is one."""
        return [completion.reward + completion.bonus for completion in self.completions]

    @property
    def informative(self) -> bool:
        """Whether the values differ enough to say which completion was better (arXiv:2509.08721 §5 drops the rest).

        Compares the range, not the standard deviation, so that the size of the group does not matter. Floors and crumbs of partial
        credit closer together than the tolerance teach nothing."""
        return max(self.values) - min(self.values) >= TOLERANCE


@dataclass(frozen=True)
class Bundle:
    """Rollouts of one node, round and stage that are published together."""

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
Slot = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,5})$")]


class _Completion(msgspec.Struct):
    prompt: Text
    response: Text
    reward: float
    finish: Annotated[str, Meta(max_length=16)] = "stop"
    tokens: Count = 0
    logprob: float | None = None


class _Question(msgspec.Struct):
    task: Label
    config: dict[str, Any]
    seed: Count
    index: Count
    answer: Text | None


class _Bundle(msgspec.Struct, kw_only=True, rename={"node_id": "peer_id"}):
    """The fields of a Bundle, with the questions apart from the rollouts."""

    schema: int = SCHEMA
    node_id: Name
    experiment: Name
    round: Count
    stage: Count
    timestamp: float
    model: Label
    policy_version: Count
    tasks_version: Label
    questions: Annotated[dict[Slot, _Question], Meta(max_length=MOST_OWN)]
    rollouts: Annotated[dict[Slot, Annotated[list[_Completion], Meta(max_length=GROUP_LIMITS[1])]], Meta(max_length=MOST_OWN)]


class _PlainBundle(msgspec.Struct):
    """The documented form without our additions; with a schema number it is a damaged bundle of ours."""

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
    return seal(_Bundle(**vars(bundle) | {"questions": questions, "rollouts": rollouts}))


def decode(data: bytes) -> Bundle:
    """Read a sealed bundle, compressed or not; raise Incomplete or BadDocument."""
    wire = unseal(unpacked(data, BUNDLE_BYTES), _Bundle, BUNDLE_BYTES)
    if wire.questions.keys() != wire.rollouts.keys():
        raise BadDocument("malformed", "questions and rollouts have different slots")
    rollouts = []
    for slot, group in wire.rollouts.items():
        asked = wire.questions[slot]
        question = Question(_common_prompt(group), asked.answer, asked.task, asked.config, asked.seed, asked.index)
        rollouts.append(Rollout(question, _completions(group), wire.node_id, wire.round, wire.stage, int(slot)))
    return Bundle(**{each.name: getattr(wire, each.name) for each in fields(Bundle)} | {"rollouts": tuple(rollouts)})


def is_plain(data: bytes) -> bool:
    """Whether a file has the plain documented form, without checksum and regenerable questions: nobody can check it."""
    try:
        return msgspec.json.decode(data, type=_PlainBundle).schema is None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def _common_prompt(group: list[_Completion]) -> str:
    prompts = {done.prompt for done in group}
    if len(prompts) != 1:
        raise BadDocument("malformed", f"a rollout must have one prompt, got {len(prompts)}")
    return group[0].prompt


def _completions(group: list[_Completion]) -> tuple[Completion, ...]:
    return tuple(Completion(done.response, done.reward, done.finish, done.tokens, done.logprob) for done in group)
