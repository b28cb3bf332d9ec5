"""Make one question and judge one answer: a thin layer over reasoning-gym and own tasks.

Guards against verifiers that execute an answer, raise, or pay for nonsense. Does not guard against code that never returns or
takes all memory, so a node never runs a bench in its own process: `serving.py` runs it in a helper.
"""

import contextlib
import dataclasses
import decimal
import importlib
import math
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from rl_swarm.errors import ConfigError
from rl_swarm.rollout import LONGEST_TEXT
from rl_swarm.tasks.gates import gate_for
from rl_swarm.tasks.spec import TASK_PRESETS, TaskSpec, nearest

BLOCK = 500  # questions under one seed: reasoning-gym's default size, because the items of some tasks depend on the size

# Nonsense that no question asks for, in the shapes that verifiers parse. The most that a verifier pays for it is its floor.
_NONSENSE = ("¤", "-1000000007", "-1000000007/998244353", "[]", "{}")

# The types that a parameter may have in TASKS, by the type of its default. The text "no" would pass for true.
_KINDS: dict[type, set[type]] = {bool: {bool}, int: {int}, float: {int, float}, str: {str}, tuple: {list}, list: {list}}


@dataclass
class Item:
    """A question as its task made it; the task's own verifier needs `entry`."""

    prompt: str
    answer: str | None
    entry: dict[str, Any]
    floor: float | None = None


@dataclass(frozen=True)
class Verdict:
    """A score from 0 to 1 and, if anything went wrong, the name of a counter."""

    score: float
    problem: str = ""


class CannotMake(Exception):
    """A task has no question at this seed and index; `problem` is the name of a counter."""

    def __init__(self, problem: str, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.detail = detail


class GymSource:
    """A task of reasoning-gym. Datasets are cached by seed, because making one costs up to 300 ms."""

    def __init__(self, spec: TaskSpec) -> None:
        registry = gym("factory").DATASETS
        if spec.name not in registry:
            known = [*TASK_PRESETS, *sorted(registry)]
            raise ConfigError(f"TASKS names {spec.name!r}, which is no task of reasoning-gym: {nearest(spec.name, known)}")
        dataset_class, config_class = registry[spec.name]
        _check_config(spec, config_class)
        _repair(spec.name)
        self.has_floor = dataset_class.score_answer is not gym("dataset").ProceduralDataset.score_answer
        self.admits = gate_for(spec.name, dataset_class)
        self._spec = spec
        self._dataset = lru_cache(maxsize=16)(self._create)
        try:
            self._verifier = self._create(0)
            same = self._verifier[0]["question"] == self._create(0)[0]["question"]
        except Exception as error:
            fact = " ".join(str(error).split()) or repr(error)
            raise ConfigError(f"TASKS has {spec.id!r}, which reasoning-gym refuses ({fact}): change its parameters") from error
        if not same:  # list_functions
            raise ConfigError(f"TASKS names {spec.name!r}, which makes other questions of the same seed: leave it out")

    def _create(self, seed: int) -> Any:
        return gym("factory").create_dataset(self._spec.name, seed=seed, **self._spec.config)

    def make(self, seed: int, index: int) -> Item:
        dataset = self._dataset(seed)
        if not 0 <= index < BLOCK:
            raise CannotMake("question_missing", f"index {index} of {self._spec.name}: a seed has {BLOCK} questions")
        entry = dataset[index]
        answer = entry["answer"]
        if answer == "" and dataset.score_answer("", entry) < 1:  # base_conversion of 0: no text is right
            raise CannotMake("question_unanswerable", entry["question"])
        return Item(entry["question"], None if answer is None else str(answer), entry)

    def raw_score(self, item: Item, answer: str) -> float:
        return float(self._verifier.score_answer(answer, item.entry))


class OwnSource:
    """A task in a user's file: `question(seed, index)` and, unless only an exact match is right, `score(question, text)`."""

    has_floor = False

    def __init__(self, spec: TaskSpec) -> None:
        self._module = module = ModuleType(f"rl_swarm_own_task_{spec.sha256[:16]}")
        module.__file__ = spec.path
        sys.modules[module.__name__] = module  # dataclasses look up the module that defines them
        try:
            exec(compile(spec.source, str(spec.path), "exec"), vars(module))
        except Exception as error:
            raise ConfigError(f"TASKS names {spec.path!r}, which cannot be loaded ({error!r}): correct the file") from error
        if not callable(getattr(module, "question", None)):
            raise ConfigError(
                f"TASKS names {spec.path!r}, which has no function question(seed, index): docs/tasks.md has an example"
            )
        try:
            same = self.make(0, 0).prompt == self.make(0, 0).prompt
        except Exception as error:
            raise ConfigError(f"TASKS names {spec.path!r}, whose question(0, 0) fails ({error!r}): see docs/tasks.md") from error
        if not same:
            raise ConfigError(
                f"TASKS names {spec.path!r}, whose question(0, 0) differs at every call: use random.Random(seed + index)"
            )

    def make(self, seed: int, index: int) -> Item:
        made = self._module.question(seed, index)
        entry = dict(made) if isinstance(made, dict) else dict(zip(("prompt", "answer"), made, strict=True))
        prompt, answer = entry["prompt"], entry.get("answer")
        if not isinstance(prompt, str) or not prompt.strip() or not isinstance(answer, str | None):
            raise TypeError(f"a prompt must be text and an answer text or None, got {prompt!r} and {answer!r}")
        return Item(prompt, answer, entry)

    def admits(self, answer: str) -> bool:
        return True  # the user's own code reads the answer; docs/tasks.md says never to execute it

    def raw_score(self, item: Item, answer: str) -> float:
        if not hasattr(self._module, "score"):
            return float(answer == item.answer)
        return float(self._module.score(item.entry, answer))


Source = GymSource | OwnSource


class Bench:
    """The loaded tasks of an experiment; `number` is a task's place in `specs`."""

    def __init__(self, specs: Sequence[TaskSpec]) -> None:
        self._sources: list[Source] = [OwnSource(spec) if spec.path else GymSource(spec) for spec in specs]
        self.item: Callable[[int, int, int], Item] = lru_cache(maxsize=1024)(self._make)

    def _make(self, number: int, seed: int, index: int) -> Item:
        with decimal.localcontext(decimal.DefaultContext):  # decimal_arithmetic would set the precision for all later tasks
            try:
                item = self._sources[number].make(seed, index)
            except CannotMake:
                raise
            except Exception as error:  # the generator's own failure: this question does not exist, others do
                raise CannotMake("question_raised", repr(error)[:200]) from error
        longest = max(len(item.prompt), len(item.answer or ""))
        if longest > LONGEST_TEXT:
            raise CannotMake("question_too_long", f"{longest} characters")
        return item

    def judge(self, number: int, seed: int, index: int, answer: str) -> Verdict:
        """Score one answer by the task's own verifier; a score that nonsense would get counts as 0."""
        source, item = self._sources[number], self.item(number, seed, index)
        key = item.answer
        if key is not None and answer == key.strip():
            answer = key  # the answer has lost its surrounding spaces, so they are not compared
        if len(answer) > 2000 + 4 * len(key or ""):
            return Verdict(0.0, "answer_too_long")
        if answer != key and not source.admits(answer):
            return Verdict(0.0)  # not counted: most of these are sentences instead of values
        with decimal.localcontext(decimal.DefaultContext):
            try:
                score = source.raw_score(item, answer)
            except MemoryError:
                return Verdict(0.0, "scorer_memory")
            except Exception:  # the verifier's own failure: it costs this completion, not the run
                return Verdict(0.0, "scorer_raised")
            if not 0 <= score <= 1 + 1e-6:  # or not a number; clamping would pay a broken scale in full
                return Verdict(0.0, "scorer_out_of_range")
            if score > 0 and answer != key and source.has_floor and score <= _floor(source, item):
                return Verdict(0.0)
        return Verdict(min(score, 1.0))


def _floor(source: Source, item: Item) -> float:
    """The most that the verifier pays for an answer that is certainly wrong.

    fraction_simplification pays 0.01 for any text and 0.05 for any fraction; propositional_logic 0.05 for any formula, and 0.25 for
    any atom when the premises contradict each other. Scores up to the floor count as 0; higher ones stay as they are."""
    if item.floor is None:
        floor = 0.0
        for nonsense in _NONSENSE:
            if item.answer and item.answer.lower() in nonsense:
                continue  # partial credit for containing the answer is no floor
            with contextlib.suppress(Exception):  # a verifier that cannot read nonsense pays nothing for it
                floor = max(floor, source.raw_score(item, nonsense))
        item.floor = floor
    return item.floor


def gym(module: str) -> Any:
    """A module of reasoning_gym, imported at its first use: that takes two or three seconds."""
    try:
        return importlib.import_module(f"reasoning_gym.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"TASKS needs the package {error.name!r}, which is not installed: pip install reasoning-gym") from None


def _check_config(spec: TaskSpec, config_class: type) -> None:
    """Refuse a parameter that the task lacks, a value of another type than its default, and text outside its defaults and choices:
    tasks open files or evaluate expressions by such text, and an experiment may be a stranger's."""
    types = {each.name: each.type for each in dataclasses.fields(config_class) if each.name not in ("seed", "size")}
    made = config_class()  # a default may be filled in when it is made
    for name, value in spec.config.items():
        if name not in types:
            raise ConfigError(f"TASKS has {spec.id!r}, but {spec.name} has no parameter {name!r}: {nearest(name, list(types))}")
        default = getattr(made, name)
        if type(value) not in _KINDS.get(type(default), {type(value)}):
            raise ConfigError(f"TASKS has {spec.id!r}, but {value!r} is no {name}: give a value like its default {default!r}")
        known = _texts(default) | _texts(typing.get_args(types[name]))
        if unknown := sorted(_texts(value) - known):
            raise ConfigError(
                f"TASKS has {spec.id!r}, but {name} may not have the text {unknown[0][:80]!r}: "
                f"choose from {', '.join(sorted(known)) or 'none'}, or write the task as a file (docs/tasks.md)"
            )


def _texts(value: object) -> set[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return _texts([*value, *value.values()])
    return set().union(*map(_texts, value)) if isinstance(value, list | tuple) else set()


def _repair(name: str) -> None:
    if name == "basic_arithmetic":
        # The same divisors in the same order, hence the same questions. Upstream divides by every number up to the root of a
        # 20-digit number, which takes from seconds (one question in ten thousand) to hours.
        gym("arithmetic.basic_arithmetic").find_common_divisors = _common_divisors
    if name == "bf":  # its compiler prints a dot for each question; a name in the module hides the built-in `print`
        gym("code.contrib.bfit.Compiler.Optimizer").print = lambda *args, **options: None


def _common_divisors(a: int, b: int) -> list[int]:
    divisors: list[int] = []
    common = math.gcd(a, b)
    for divisor in importlib.import_module("sympy").divisors(common):
        if divisor * divisor > common:
            break
        divisors.extend([divisor] if divisor * divisor == common else [divisor, common // divisor])
    return divisors
