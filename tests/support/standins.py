"""Stand-ins for tasks, policy, trainer and checkpoints: the shipped loops run with them, without torch or reasoning-gym."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_swarm.errors import BadRollout, CheckpointError
from rl_swarm.randomness import generator, stream_seed
from rl_swarm.rollout import Completion, Question, Rollout
from rl_swarm.tasks import Tasks
from rl_swarm.tasks.bench import Item

TASKS_VERSION = "stand-in 1"


def make_question(seed: int, index: int) -> Question:
    chance = generator(seed, index)
    a, b = chance.randrange(1000), chance.randrange(1000)
    return Question(f"What is {a} + {b}?", str(a + b), "sum", {}, seed, index)


class StandInTasks:
    def __init__(self, node_id: str, seed: int = 42) -> None:
        self.seed = stream_seed("stream", seed, node_id) % (1 << 40)
        self.cursor = 0
        self.counters: Counter[str] = Counter()

    def draw(self, count: int) -> list[Question]:
        self.cursor += count
        return [make_question(self.seed, index) for index in range(self.cursor - count, self.cursor)]

    def score_groups(
        self, groups: Sequence[tuple[Question, Sequence[str]]], go_on: Callable[[], None] = lambda: None
    ) -> list[list[float]]:
        return [self.score_all(question, texts) for question, texts in groups]

    def score_all(self, question: Question, texts: Sequence[str]) -> list[float]:
        return [float(text == f"<answer>{question.answer}</answer>") for text in texts]

    def verify(self, rollout: Rollout, seconds: float = math.inf) -> Rollout:
        asked = rollout.question
        if asked.task != "sum":
            raise BadRollout("task_not_allowed")
        mine = make_question(asked.seed, asked.index)
        if mine.prompt != asked.prompt:
            raise BadRollout("prompt_mismatch")
        scores = self.score_all(mine, [done.text for done in rollout.completions])
        scored = tuple(replace(done, reward=score) for done, score in zip(rollout.completions, scores, strict=True))
        return replace(rollout, question=mine, completions=scored)

    def state(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def restore(self, state: dict[str, Any]) -> None:
        self.cursor = state["cursor"]


class StandInPolicy:
    """Answers right half of the time; every group is informative. `seconds` is how long a round's answers take."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def answer(self, questions: Sequence[Question], group_size: int, seed: int) -> Iterator[tuple[Completion, ...]]:
        for slot, question in enumerate(questions):
            if self.seconds:
                time.sleep(self.seconds / len(questions))
            chance = generator(seed, slot)
            right = chance.sample(range(group_size), group_size // 2)
            yield tuple(
                Completion(f"<answer>{question.answer if number in right else chance.random()}</answer>", tokens=5, logprob=-3.0)
                for number in range(group_size)
            )


class StandInTrainer:
    """Its model is one number, which depends on every rollout it was trained on, in order."""

    def __init__(self) -> None:
        self.policy_version = 0
        self.weights = 0

    def update(self, batch: Sequence[Rollout], rate_share: float = 1.0) -> dict[str, float]:
        self.policy_version += 1
        self.weights = stream_seed(self.weights, *(rollout.id for rollout in batch))
        return {"loss": 0.0, "informative": float(sum(rollout.informative for rollout in batch))}

    def state(self) -> dict[str, Any]:
        return {"version": self.policy_version, "weights": self.weights}

    def restore(self, state: dict[str, Any]) -> None:
        self.policy_version, self.weights = state["version"], state["weights"]


class StandInPush:
    """Takes `seconds` when the node ends."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_round(self, number: int) -> None: ...

    def push_now(self, number: int) -> None: ...

    def close(self, patience: Callable[[], float]) -> None:
        time.sleep(min(self.seconds, patience()))


class StandInCheckpoints:
    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.saved: str | None = None

    def save(self, round: int, node_state: dict[str, Any], trainer_state: dict[str, Any]) -> Path | None:
        self.saved = json.dumps([round, node_state, trainer_state])
        if self.folder is None:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / "part"
            part.write_text(self.saved)
            return part.replace(self.folder / "checkpoint.json")
        except OSError as error:
            raise CheckpointError(f"no checkpoint of round {round} could be written: {error}") from error

    def restore(self, apply: Callable[[int, dict[str, Any], dict[str, Any]], None]) -> int | None:
        found = self.newest()
        if found is None:
            return None
        apply(*found)
        return found[0]

    def newest(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        if self.folder and (self.folder / "checkpoint.json").exists():
            self.saved = (self.folder / "checkpoint.json").read_text()
        if self.saved is None:
            return None
        round_number, node_state, trainer_state = json.loads(self.saved)
        return round_number, node_state, trainer_state


def made_at(tasks: Tasks, seed: int, index: int) -> Question:
    """Make a question of the first task at any place, also outside the node's own stream."""
    [item] = tasks._helper.items([(0, seed, index)])
    assert isinstance(item, Item)
    return tasks._question((0, seed, index), item)
