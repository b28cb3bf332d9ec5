"""The questions of one node: its own stream, the held-out set of the experiment, and the truth about peers' rollouts.

Every question follows from (specs, seed, node, cursor): nothing here reads a clock or a global generator. Seeds are derived by
hashing, never by adding, since (seed 7, index i + 1) and (seed 8, index i) are the same item in reasoning-gym. A question is
known by its text. Nothing a peer claims is believed: not the prompt, not the answer, not a reward.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rl_swarm.document import Count, typed
from rl_swarm.errors import BadRollout, ConfigError
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import Question, Rollout
from rl_swarm.tasks.bench import BLOCK, CannotMake, Item
from rl_swarm.tasks.helper import Helper, Place, TooSlow, shared_helper
from rl_swarm.tasks.spec import TaskSpec

HELD_OUT_PER_TASK = 16
REMEMBERED = 2048  # texts lately drawn, so that a small task repeats itself only when it has run out
TextId = Annotated[str, Meta(max_length=64)]
_FRESH_TRIES = 8
_MOST_TRIES = 1000
_MOST_TIMEOUTS = 3  # questions of one task that may hang before it is given up: each takes 20 s
_HELD_OUT_TRIES = 12  # questions of one task of which one at least can be made
_REASONS = {"unknown_question": "task_not_allowed", "question_differs": "prompt_mismatch"}  # why a rollout is refused
Made = Item | CannotMake


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node is in its stream of questions: choices made, questions made of each task, and texts lately drawn."""

    position: Count
    drawn: dict[str, Count]
    recent: Annotated[list[TextId], Meta(max_length=REMEMBERED)]


def parsed_answer(text: str) -> str | None:
    """What stands between the last `<answer>` that is closed and its `</answer>`, without surrounding spaces."""
    start = text.rfind("<answer>", 0, max(text.rfind("</answer>"), 0))
    return None if start < 0 else text[start + len("<answer>") : text.index("</answer>", start)].strip()


class Tasks:
    """Draws, regenerates and scores questions; `counters` says what went wrong, by name."""

    def __init__(self, specs: Sequence[TaskSpec], *, seed: int, node_id: str, held_out_per_task: int = HELD_OUT_PER_TASK) -> None:
        if not specs:
            raise ConfigError("TASKS names no task: set it to a preset such as easy, or to names such as gcd,chain_sum")
        self.specs = tuple(specs)
        self.counters: Counter[str] = Counter()
        self._origin = (seed, node_id)
        self._bounds = list(accumulate(spec.weight for spec in self.specs))
        self._shared: Helper | None = shared_helper(self.specs)
        self._held_out_per_task = held_out_per_task
        self._held_out: dict[str, Question] | None = None
        self._position = 0
        self._drawn = {spec.id: 0 for spec in self.specs}
        self._recent: dict[str, None] = {}

    def draw(self, count: int) -> list[Question]:
        """The next questions of this node's stream: tasks by weight, with replacement; never a held-out one."""
        return list(self._upcoming(count))

    def state(self) -> dict[str, Any]:
        """The cursor, as JSON would have it: a node that restores it goes on with the very next question."""
        return {"position": self._position, "drawn": dict(self._drawn), "recent": list(self._recent)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; raise CheckpointError, with nothing changed, if it is no such state.

        Counts of tasks that this node no longer has are dropped.
        """
        cursor = typed(state, Cursor)
        self._position = cursor.position
        self._drawn = {key: cursor.drawn.get(key, 0) for key in self._drawn}
        self._recent = dict.fromkeys(cursor.recent)

    def score(self, question: Question, text: str) -> float:
        """What the task's own verifier pays for the answer in `text`: 0 to 1, and 0 where there is none. Never raises or hangs."""
        return self.score_all(question, [text])[0]

    def score_all(self, question: Question, texts: Sequence[str]) -> list[float]:
        """Score a whole group of completions at once."""
        answers = [parsed_answer(text) for text in texts]
        given = sum(answer is not None for answer in answers)
        try:
            return self._judge(question, answers)[1] if given else [0.0] * len(texts)
        except CannotMake as error:
            self.counters[error.problem] += given
            return [0.0] * len(texts)

    def verify(self, rollout: Rollout, seconds: float = math.inf) -> Rollout:
        """A peer's rollout as we see it: the same question made here, our answer key, our scores; or BadRollout.

        One that takes longer than `seconds` to check is refused as a whole: there is no such thing as half a group."""
        asked = rollout.question
        if asked.task is None:
            raise BadRollout("unverifiable", "the question names no task that could make it again")
        if asked.text_id in self._held_out_texts():
            raise BadRollout("held_out", f"{asked.task} seed {asked.seed} index {asked.index} is for measuring only")
        try:
            question, scores = self._judge(asked, [parsed_answer(done.text) for done in rollout.completions], seconds)
        except CannotMake as error:
            raise BadRollout(_REASONS.get(error.problem, "unverifiable"), f"{asked.task[:80]!r}: {str(error)[:200]}") from None
        except TooSlow:
            raise BadRollout("slow_to_check", f"{asked.task} took longer than {seconds:.1f} s") from None
        scored = [dataclasses.replace(done, reward=score) for done, score in zip(rollout.completions, scores, strict=True)]
        return dataclasses.replace(rollout, question=question, completions=tuple(scored))

    def _judge(self, asked: Question, answers: Sequence[str | None], seconds: float = math.inf) -> tuple[Question, list[float]]:
        """Make a question again and score the answers to it, 0 for none; raise CannotMake if it is not one of ours, or TooSlow."""
        place = self._place_of(asked)
        given = {slot: answer for slot, answer in enumerate(answers) if answer is not None}
        item, verdicts = self._helper.judge(place, asked.prompt, list(given.values()), seconds)
        scores = [0.0] * len(answers)
        for slot, verdict in zip(given, verdicts, strict=True):
            scores[slot] = verdict.score
            if verdict.problem:
                self.counters[verdict.problem] += 1
        return self._question(place, item), scores

    def held_out(self) -> list[Question]:
        """Questions that nobody trains on: the same for every node and seed of an experiment."""
        return list(self._held_out_texts().values())

    def close(self) -> None:
        """Let go of the helper, which ends if no other Tasks uses it. Without this call it ends with this object or process."""
        self._shared = None

    @property
    def _helper(self) -> Helper:
        assert self._shared is not None, "these tasks are closed"
        return self._shared

    def _upcoming(self, count: int) -> Iterator[Question]:
        numbers = [self._choice(self._position + ahead) for ahead in range(count)]
        made = self._make_ahead(numbers)
        for number in numbers:
            self._position += 1
            yield self._fresh(number, made)

    def _choice(self, position: int) -> int:
        spot = stream_seed("choice", *self._origin, position) / 2**63 * self._bounds[-1]
        return next(number for number, bound in enumerate(self._bounds) if spot < bound or number == len(self._bounds) - 1)

    def _make_ahead(self, numbers: Sequence[int]) -> dict[Place, Made]:
        """In one request, what is drawn next if no question is passed over."""
        drawn = Counter(self._drawn)
        places = []
        for number in numbers:
            places.append(self._place(number, drawn[self.specs[number].id]))
            drawn[self.specs[number].id] += 1
        return dict(zip(places, self._helper.items(places), strict=True))

    def _fresh(self, number: int, made: Mapping[Place, Made]) -> Question:
        seen, timeouts = 0, self.counters["question_timeout"]
        for _ in range(_MOST_TRIES):
            question = self._advance(number, made)
            if question is None:
                if self.counters["question_timeout"] - timeouts >= _MOST_TIMEOUTS:
                    raise self._cannot_be_made(number)
                continue
            if question.text_id in self._recent:
                seen += 1
                if seen < _FRESH_TRIES:
                    continue
                self.counters["repeated_question"] += 1
            self._remember(question.text_id)
            return question
        raise ConfigError(
            f"TASKS has {self.specs[number].id!r}, of which {_MOST_TRIES} questions in a row cannot be used: leave it out"
        )

    def _remember(self, text_id: str) -> None:
        self._recent.pop(text_id, None)
        self._recent[text_id] = None
        if len(self._recent) > REMEMBERED:
            del self._recent[next(iter(self._recent))]

    def _advance(self, number: int, made: Mapping[Place, Made]) -> Question | None:
        """The next question of one task, or None where it is held out or cannot be made."""
        key = self.specs[number].id
        place = self._place(number, self._drawn[key])
        self._drawn[key] += 1
        item = made.get(place) or self._helper.items([place])[0]
        if isinstance(item, CannotMake):
            self.counters[item.problem] += 1
            return None
        question = self._question(place, item)
        return None if question.text_id in self._held_out_texts() else question

    def _place(self, number: int, drawn: int) -> Place:
        """Where the next question of a task lies in this node's stream, when so many have been drawn."""
        block, index = divmod(drawn, BLOCK)
        return number, stream_seed("stream", *self._origin, self.specs[number].id, block) >> 32, index

    def _held_out_texts(self) -> dict[str, Question]:
        if self._held_out is None:
            found = [self._hold_out(number) for number in range(len(self.specs))]
            self._held_out = {text_id: question for each in found for text_id, question in each.items()}
        return self._held_out

    def _hold_out(self, number: int) -> dict[str, Question]:
        """The held-out questions of one task: at most a quarter of what a small task has, so that something is left to learn."""
        wanted, key, made, repeats = self._held_out_per_task, self.specs[number].id, dict[str, Question](), 0
        timeouts = self.counters["question_timeout"]
        for attempt in range(5 * wanted):
            hung = self.counters["question_timeout"] - timeouts >= _MOST_TIMEOUTS
            if hung or (attempt >= _HELD_OUT_TRIES and not made):
                raise self._cannot_be_made(number)
            if len(made) >= wanted and (not repeats or len(made) >= 4 * wanted):
                break
            block, index = divmod(attempt, BLOCK)
            place = (number, stream_seed("held-out", key, block) >> 32, index)
            [item] = self._helper.items([place])
            if isinstance(item, CannotMake):
                self.counters[item.problem] += 1
                continue
            question = self._question(place, item)
            repeats += question.text_id in made
            made.setdefault(question.text_id, question)
        kept = min(wanted, len(made) // 4) if repeats else wanted
        return dict(list(made.items())[:kept])

    def _cannot_be_made(self, number: int) -> ConfigError:
        return ConfigError(f"TASKS has {self.specs[number].id!r}, whose questions cannot be made, or not in time: leave it out")

    def _question(self, place: Place, item: Item) -> Question:
        number, seed, index = place
        spec = self.specs[number]
        return Question(item.prompt, item.answer, spec.name, dict(spec.config), seed, index)

    def _place_of(self, question: Question) -> Place:
        """Where a question lies among our tasks; weights are each node's own affair."""
        ours = (each for each, spec in enumerate(self.specs) if spec.name == question.task and spec.config == question.config)
        number = next(ours, None)
        if number is None:
            raise CannotMake("unknown_question", "with this config it is none of the experiment's tasks")
        if not (0 <= question.seed < 2**53 and 0 <= question.index < 2**53):
            raise CannotMake("question_missing", f"seed {question.seed}, index {question.index}")
        return number, question.seed, question.index
