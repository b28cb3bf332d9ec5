"""The questions of one node: its own stream, the experiment's held-out set, and the scores of peers' rollouts.

Every question follows from (specs, seed, node, cursor); nothing here reads a clock or a global generator. Seeds are derived by
hashing, never by adding: (seed 7, index i + 1) and (seed 8, index i) are the same item in reasoning-gym. A question's text is its
identity. No claim of a peer is believed: neither prompt, nor answer, nor reward.
"""

import dataclasses
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice, product
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rl_swarm.document import Count, typed
from rl_swarm.errors import BadRollout, ConfigError
from rl_swarm.randomness import stream_seed
from rl_swarm.rollout import Question, Rollout
from rl_swarm.tasks.bench import BLOCK, CannotMake, Item, Verdict
from rl_swarm.tasks.helper import Job, Place, TooSlow, shared_helper
from rl_swarm.tasks.spec import TaskSpec

HELD_OUT = 400  # questions of all tasks together: the standard error of a share is then 2.5 points at most
PASS = 1.0 - 1e-6  # a score from here on is the full reward
TAGGED = "<answer>{}</answer>"  # the form in which an answer is read
REMEMBERED = 2048  # texts drawn lately; a small task repeats itself only when it has run out
TextId = Annotated[str, Meta(max_length=64)]
_FRESH_TRIES = 8
_MOST_TRIES = 1000
_MOST_TIMEOUTS = 3  # questions of one task that may hang before it is given up: each takes 20 s
_EXAMPLE_TRIES = 4
_AT_ONCE = 32  # held-out questions in one request
_HELD_OUT_TRIES = 12  # give up on a task if so many questions fail before the first is made
_REASONS = {"unknown_question": "task_not_allowed", "question_differs": "prompt_mismatch"}  # why a rollout is refused


_Asked = tuple[Question, Sequence[str | None]]  # with answers, or None where a completion has none


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's position in its stream: choices made, questions made of each task, and texts drawn lately."""

    position: Count
    drawn: dict[str, Count]
    recent: Annotated[list[TextId], Meta(max_length=REMEMBERED)]


def parsed_answer(text: str) -> str | None:
    """The text between the last closed `<answer>` and its `</answer>`, without surrounding spaces."""
    start = text.rfind("<answer>", 0, max(text.rfind("</answer>"), 0))
    return None if start < 0 else text[start + len("<answer>") : text.index("</answer>", start)].strip()


def form_bonus(text: str, format_reward: float) -> float:
    """What a completion gets for its form alone: FORMAT_REWARD if it has an answer that is read."""
    return format_reward if parsed_answer(text) is not None else 0.0


class Tasks:
    """Draws, regenerates and scores questions; `counters` counts problems by name."""

    def __init__(
        self, specs: Sequence[TaskSpec], *, seed: int, node_id: str, held_out: int = HELD_OUT, format_reward: float = 0.0
    ) -> None:
        if not specs:
            raise ConfigError("TASKS names no task: set it to a preset such as easy, or to names such as gcd,chain_sum")
        self.specs = tuple(specs)
        self.counters: Counter[str] = Counter()
        self._origin = (seed, node_id)
        self._bounds = list(accumulate(spec.weight for spec in self.specs))
        self._helper = shared_helper(self.specs)  # ends with the last Tasks that uses it
        self._held_out_wanted, self._format_reward = held_out, format_reward
        self._position = 0
        self._drawn = {spec.id: 0 for spec in self.specs}
        self._recent: dict[str, None] = {}

    def draw(self, count: int) -> list[Question]:
        """The next questions of this node's stream: tasks by weight, with replacement; never a held-out one."""
        numbers = [self._choice(self._position + ahead) for ahead in range(count)]
        ahead = Counter(self._drawn)
        places = []
        for number in numbers:
            places.append(self._place(number, ahead[self.specs[number].id], "stream", *self._origin))
            ahead[self.specs[number].id] += 1
        made = dict(zip(places, self._helper.items(places), strict=True))  # in one request; only questions passed over need more
        questions = []
        for number in numbers:
            self._position += 1
            questions.append(self._fresh(number, made))
        return questions

    def state(self) -> dict[str, Any]:
        """The cursor as JSON: a node that restores it continues with the very next question."""
        return {"position": self._position, "drawn": dict(self._drawn), "recent": list(self._recent)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, without the counts of tasks that this node no longer has; raise CheckpointError, with nothing
        changed, if it is no such state."""
        cursor = typed(state, Cursor)
        self._position = cursor.position
        self._drawn = {task: cursor.drawn.get(task, 0) for task in self._drawn}
        self._recent = dict.fromkeys(cursor.recent)

    def score(self, question: Question, text: str) -> float:
        """The score of the answer in `text` by the task's own verifier, 0 to 1, and 0 without an answer. Never raises or hangs."""
        return self.score_all(question, [text])[0]

    def score_all(self, question: Question, texts: Sequence[str]) -> list[float]:
        """Score a whole group of completions at once."""
        return self.score_groups([(question, texts)])[0]

    def score_groups(
        self, groups: Sequence[tuple[Question, Sequence[str]]], go_on: Callable[[], None] = lambda: None
    ) -> list[list[float]]:
        """Score the completions of several questions in one request. If answers hang, more requests are needed; `go_on` is called
        before each of these and may raise."""
        parsed = [(question, [parsed_answer(text) for text in texts]) for question, texts in groups]
        asked = {number: each for number, each in enumerate(parsed) if any(answer is not None for answer in each[1])}
        scores = [[0.0] * len(answers) for _, answers in parsed]
        for number, judged in zip(asked, self._judge(list(asked.values()), go_on=go_on), strict=True):
            if isinstance(judged, CannotMake):
                self.counters[judged.problem] += sum(answer is not None for answer in parsed[number][1])
            else:
                scores[number] = judged[1]
        return scores

    def verify(self, rollout: Rollout, seconds: float = math.inf) -> Rollout:
        """A peer's rollout with the question made here, our answer key and our scores; or BadRollout.

        A rollout that takes longer than `seconds` to check is refused as a whole."""
        asked = rollout.question
        if asked.task is None:
            raise BadRollout("unverifiable", "the question names no task that could make it again")
        if asked.text_id in self._held_out:
            raise BadRollout("held_out", f"{asked.task} seed {asked.seed} index {asked.index} is for measuring only")
        try:
            [judged] = self._judge([(asked, [parsed_answer(done.text) for done in rollout.completions])], seconds)
        except TooSlow:
            raise BadRollout("slow_to_check", f"{asked.task} took longer than {seconds:.1f} s") from None
        if isinstance(judged, CannotMake):
            raise BadRollout(_REASONS.get(judged.problem, "unverifiable"), f"{asked.task[:80]!r}: {str(judged)[:200]}")
        question, scores = judged
        scored = [
            dataclasses.replace(done, reward=score, bonus=form_bonus(done.text, self._format_reward))
            for done, score in zip(rollout.completions, scores, strict=True)
        ]
        return dataclasses.replace(rollout, question=question, completions=tuple(scored))

    def held_out(self) -> list[Question]:
        """Questions that nobody trains on: the same for every node and seed of an experiment."""
        return list(self._held_out.values())

    def examples(self, count: int) -> tuple[tuple[str, str], ...]:
        """Questions with their right answers in the form that is read, to show in every prompt; the tasks take turns.

        The same for every node and seed of an experiment, and never held out. Tasks without answer keys are left out, so there may
        be fewer.
        """
        found: dict[str, tuple[str, str]] = {}
        for attempt, number in product(range(_EXAMPLE_TRIES * count), range(len(self.specs))):
            if len(found) == count:
                break
            place = self._place(number, attempt, "examples")
            [item] = self._helper.items([place])
            if isinstance(item, CannotMake) or item.answer is None:
                continue
            question, answer = self._question(place, item), TAGGED.format(item.answer)
            if question.text_id not in self._held_out and self.score(question, answer) >= PASS:
                found.setdefault(question.text_id, (question.prompt, answer))
        return tuple(found.values())

    def _judge(
        self, asked: Sequence[_Asked], seconds: float = math.inf, go_on: Callable[[], None] = lambda: None
    ) -> list[tuple[Question, list[float]] | CannotMake]:
        """Make the questions again and score the answers, 0 for None. Raise TooSlow after `seconds`."""
        jobs = [self._job(question, answers) for question, answers in asked]
        self._helper.do([job for job in jobs if isinstance(job, Job)], seconds, go_on)
        return [self._judged(job, answers) if isinstance(job, Job) else job for job, (_, answers) in zip(jobs, asked, strict=True)]

    def _job(self, question: Question, answers: Sequence[str | None]) -> Job | CannotMake:
        """The place of the question among our tasks, with any weight, and the answers to score."""
        ours = (each for each, spec in enumerate(self.specs) if spec.name == question.task and spec.config == question.config)
        number = next(ours, None)
        if number is None:
            return CannotMake("unknown_question", "with this config it is none of the experiment's tasks")
        if not (0 <= question.seed < 2**53 and 0 <= question.index < 2**53):
            return CannotMake("question_missing", f"seed {question.seed}, index {question.index}")
        given = [answer for answer in answers if answer is not None]
        return Job((number, question.seed, question.index), question.prompt, given)

    def _judged(self, job: Job, answers: Sequence[str | None]) -> tuple[Question, list[float]] | CannotMake:
        if isinstance(job.result, CannotMake):
            return job.result
        verdicts = iter(job.verdicts)
        found = [Verdict(0.0) if answer is None else next(verdicts) for answer in answers]
        self.counters.update(verdict.problem for verdict in found if verdict.problem)
        return self._question(job.place, job.result), [verdict.score for verdict in found]

    def _choice(self, position: int) -> int:
        spot = stream_seed("choice", *self._origin, position) / 2**63 * self._bounds[-1]
        return min(bisect_right(self._bounds, spot), len(self._bounds) - 1)

    def _fresh(self, number: int, made: Mapping[Place, Item | CannotMake]) -> Question:
        """The next question of a task, after some tries also one that was drawn lately."""
        seen = 0
        for question in self._make(number, islice(self._stream(number), _MOST_TRIES), _MOST_TRIES, made):
            if question.text_id in self._held_out:
                continue
            if question.text_id in self._recent:
                seen += 1
                if seen < _FRESH_TRIES:
                    continue
                self.counters["repeated_question"] += 1
            self._recent.pop(question.text_id, None)
            self._recent[question.text_id] = None
            if len(self._recent) > REMEMBERED:
                del self._recent[next(iter(self._recent))]
            return question
        raise self._unusable(number)

    def _stream(self, number: int) -> Iterator[Place]:
        task = self.specs[number].id
        while True:
            self._drawn[task] += 1
            yield self._place(number, self._drawn[task] - 1, "stream", *self._origin)

    @cached_property
    def _held_out(self) -> dict[str, Question]:
        """The held-out questions of all tasks, by text. Large tasks make up for small ones, which have fewer."""
        kept: dict[int, dict[str, Question]] = {}
        large, share, missing = list(range(len(self.specs))), 0, self._held_out_wanted
        while missing > 0 and large:
            share += math.ceil(missing / len(large))
            kept |= {number: self._hold_out(number, share) for number in large}
            large = [number for number in large if len(kept[number]) == share]
            missing = self._held_out_wanted - sum(map(len, kept.values()))
        return {text_id: question for number in sorted(kept) for text_id, question in kept[number].items()}

    def _hold_out(self, number: int, wanted: int) -> dict[str, Question]:
        """The held-out questions of one task: at most a quarter of a small task, to leave something to learn."""
        made, repeats = dict[str, Question](), 0
        for question in self._candidates(number, 5 * wanted):
            repeats += question.text_id in made
            made.setdefault(question.text_id, question)
            if len(made) >= wanted and (not repeats or len(made) >= 4 * wanted):
                break
        kept = min(wanted, len(made) // 4) if repeats else wanted
        return dict(list(made.items())[:kept])

    def _candidates(self, number: int, count: int) -> Iterator[Question]:
        """Questions of one task that may be held out. Once it has shown that it can make any, many are made in one request."""
        places = [self._place(number, attempt, "held-out") for attempt in range(count)]
        yield from self._make(number, places[:_HELD_OUT_TRIES], _HELD_OUT_TRIES)
        for start in range(_HELD_OUT_TRIES, count, _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            yield from self._make(number, some, _MOST_TRIES, dict(zip(some, self._helper.items(some), strict=True)))

    def _make(
        self, number: int, places: Iterable[Place], most_failures: int, made: Mapping[Place, Item | CannotMake] | None = None
    ) -> Iterator[Question]:
        """Make the questions of one task at these places, if not yet `made`, and count those that cannot be made.

        Raise ConfigError when too many hang, or too many fail before the first is made."""
        failed = timeouts = 0
        for place in places:
            item = (made or {}).get(place) or self._helper.items([place])[0]
            if isinstance(item, CannotMake):
                self.counters[item.problem] += 1
                failed += 1
                timeouts += item.problem == "question_timeout"
                if timeouts >= _MOST_TIMEOUTS or failed >= most_failures:
                    raise self._unusable(number)
            else:
                most_failures = _MOST_TRIES
                yield self._question(place, item)

    def _unusable(self, number: int) -> ConfigError:
        return ConfigError(f"TASKS has {self.specs[number].id!r}, whose questions cannot be made, or not in time: leave it out")

    def _place(self, number: int, count: int, *stream: object) -> Place:
        """The place of the question after `count` others of a task in a stream."""
        block, index = divmod(count, BLOCK)
        return number, stream_seed(*stream, self.specs[number].id, block) >> 32, index

    def _question(self, place: Place, item: Item) -> Question:
        number, seed, index = place
        spec = self.specs[number]
        return Question(item.prompt, item.answer, spec.name, dict(spec.config), seed, index)
