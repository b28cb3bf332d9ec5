"""The TASKS setting: what it may say, and one canonical way to say it.

This module reads text and, for own tasks, hashes a file. It never imports reasoning_gym, so `config`, `status` and the web
server may use it; whether a name or a parameter exists is checked by `Tasks`, which loads the library anyway.

An own task is code. It is taken only from a file that this user named, in TASKS or TASK_FILES; an experiment can ask for one by
its hash, and never say where it lies.
"""

import difflib
import hashlib
import importlib.metadata
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_swarm.config import Config, expanded
from rl_swarm.errors import ConfigError

PRESETS: dict[str, str] = {
    "paper": (
        "base_conversion,basic_arithmetic,arc_1d,bf,propositional_logic,"
        "fraction_simplification,decimal_arithmetic,calendar_arithmetic,binary_matrix"
    ),
    # About 6,800 distinct questions with prompts of 16 to 104 characters and answers of 1 to 3.
    "easy": (
        "chain_sum:max_terms=3:max_digits=1,"
        "basic_arithmetic:max_terms=2:max_digits=1:operators=[+,-,*]:allow_parentheses=false,"
        "gcd:max_value=20,"
        "count_primes:max_n=30,"
        "spell_backward:max_word_len=3"
    ),
}

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WEIGHT = re.compile(r"\*\s*(-?[0-9][0-9.]*(?:e-?[0-9]+)?)$", re.IGNORECASE)
_OWN = re.compile(r"(?P<path>.+\.py)(?:@(?P<sha>[0-9a-f]{16}))?")
_STEM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INT = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_BARE = re.compile(r"[^\s\"'\[\],:=]+")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_RESERVED = ("seed", "size")


@dataclass(frozen=True)
class TaskSpec:
    """One task of an experiment.

    An own task also has the path, the hash and the content of its file, which is read once: editing it changes no node that
    runs. Where it lies is this node's affair, so paths are not compared; `name` carries the hash, and a peer with another
    file has another task."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    path: str | None = field(default=None, compare=False)
    sha256: str = ""
    source: str = field(default="", compare=False, repr=False)

    @property
    def id(self) -> str:
        """Name and parameters as text; specs with the same id are the same task, whatever their weights."""
        if self.path is not None:
            stem, _, digest = self.name.rpartition("@")
            return f"./{stem}.py@{digest}"
        return self.name + "".join(f":{name}={_text(self.config[name])}" for name in sorted(self.config))


def tasks_of(config: Config) -> tuple[TaskSpec, ...]:
    """The tasks of a node; what comes from an experiment may name no file."""
    files = [path.strip() for path in (config.task_files or "").split(",") if path.strip()]
    return parse_tasks(config.tasks, None if config.sources.get("tasks") != "experiment" else files)


def parse_tasks(text: str, files: Sequence[str] | None = None) -> tuple[TaskSpec, ...]:
    """Read TASKS: names, parameters, weights, presets and paths of own tasks; raise ConfigError with one line.

    With `files` the text is a stranger's: an own task is looked for among these files by its hash, and nowhere else. The specs come
    back sorted, since the order in which tasks are named means nothing."""
    specs: list[TaskSpec] = []
    for entry in _split(text, ",", text):
        if not entry:
            raise _wrong(text, "has an empty entry", "write names separated by single commas, for example TASKS=gcd,chain_sum")
        specs.extend(_parse_entry(entry, text, files))
    by_id: dict[str, TaskSpec] = {}
    for spec in specs:
        if by_id.setdefault(spec.id, spec) is not spec:
            raise _wrong(text, f"names {spec.id!r} twice", f"name it once and give it a weight: {spec.id}*2")
    return tuple(by_id[each] for each in sorted(by_id))


def canonical(specs: Iterable[TaskSpec]) -> str:
    """The one text for these specs: equal for two nodes exactly when they train on the same tasks with the same weights.

    It parses back to the same specs. An own task is written `./name.py@hash`: where it is read, the file is expected in the
    current folder and its content is compared with the hash."""
    return ",".join(
        sorted(spec.id + ("" if spec.weight == 1 else f"*{spec.weight!r}".removesuffix(".0").replace("+", "")) for spec in specs)
    )


def tasks_version() -> str:
    """Which task library makes the questions here, as published with every bundle; reads metadata, imports nothing."""
    try:
        return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"
    except importlib.metadata.PackageNotFoundError:
        return "reasoning-gym not installed"


def nearest(name: str, known: Sequence[str]) -> str:
    """The remedy for a misspelt name: the nearest real one, or some of them when nothing is near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    some = ", ".join(known[:12]) + (" and others" if len(known) > 12 else "")
    return f"did you mean {close[0]!r}?" if close else f"there are {some or 'none'}"


def _parse_entry(entry: str, text: str, files: Sequence[str] | None) -> list[TaskSpec]:
    weight = 1.0
    if found := _WEIGHT.search(entry):
        weight = _parse_weight(found[1], entry, text)
        entry = entry[: found.start()].rstrip()
    if entry in PRESETS:
        return [replace(spec, weight=spec.weight * weight) for spec in parse_tasks(PRESETS[entry])]
    if own := _OWN.fullmatch(entry):
        if files is not None:
            return [_named_task(own["path"], own["sha"] or "", weight, files)]
        return [_own_task(own["path"], own["sha"], weight, text)]
    name, *parameters = _split(entry, ":", text)
    if not _NAME.fullmatch(name):
        raise _wrong(text, f"has {entry!r}, which is no task", "use a reasoning-gym name, a preset, or a path that ends in .py")
    config: dict[str, Any] = {}
    for parameter in parameters:
        key, equals, value = parameter.partition("=")
        if not equals or not _NAME.fullmatch(key.strip()) or key.strip() in config:
            raise _wrong(text, f"has {parameter!r} in {entry!r}", f"write each parameter once, as {name}:parameter=value")
        if key.strip() in _RESERVED:
            raise _wrong(text, f"sets {key.strip()} in {entry!r}", "leave it out: each node derives it from SEED and NODE_ID")
        config[key.strip()] = _parse_value(value.strip(), text)
    return [TaskSpec(name, config, weight)]


def _parse_weight(value: str, entry: str, text: str) -> float:
    weight = float(value) if _FLOAT.fullmatch(value) else -1.0
    if not 1e-6 <= weight <= 1e6:
        raise _wrong(text, f"has the weight {value} in {entry!r}", "use a positive number, for example gcd*2")
    return weight


def _own_task(given: str, sha: str | None, weight: float, text: str) -> TaskSpec:
    path = expanded(given, "TASKS")
    try:
        content = path.read_bytes()
        source = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(text, f"names the file {given!r} ({error})", "give the path of a readable .py file in UTF-8") from None
    if not _STEM.fullmatch(path.stem):
        raise _wrong(text, f"names the file {path.name!r}", "rename it: letters, digits, '.', '_' and '-', at most 64")
    digest = hashlib.sha256(content).hexdigest()
    if sha is not None and not digest.startswith(sha):
        raise _wrong(
            text, f"wants {given!r} with hash {sha}, this file has {digest[:16]}", "copy the file that the experiment uses"
        )
    return TaskSpec(f"{path.stem}@{digest[:16]}", {}, weight, str(path.resolve()), digest, source)


def _named_task(given: str, sha: str, weight: float, files: Sequence[str]) -> TaskSpec:
    """The task of an experiment that asks for code, from one of the files that this user named."""
    for path in files:
        spec = _own_task(path, None, weight, path)
        if sha and spec.sha256.startswith(sha):
            return spec
    raise ConfigError(
        f"the experiment runs code, the task file {Path(given).name!r} with hash {sha or 'none'}, which TASK_FILES does not name: "
        "get it from whoever started the experiment, read it, and start again with TASK_FILES set to its path"
    )


def _parse_value(value: str, text: str) -> Any:
    if value.startswith("[") and value.endswith("]"):
        inner = value[1:-1].strip()
        return [_parse_value(item, text) for item in _split(inner, ",", text)] if inner else []
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1]
    if value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            raise _wrong(text, f"has the value {value}", "close the quotes, and double a backslash") from None
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INT.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    if _BARE.fullmatch(value):
        return value
    raise _wrong(text, f"has the value {value!r}", 'write a number, true, false, a word, "quoted text" or a list such as [1,2]')


def _text(value: Any) -> str:
    """A value as `_parse_value` reads it back; JSON but for spaces."""
    return json.dumps(value, separators=(",", ":"))


def _split(text: str, mark: str, whole: str) -> list[str]:
    """Split at `mark` outside quotes and brackets."""
    parts, start, depth, quote, escaped = [], 0, 0, "", False
    for place, letter in enumerate(text):
        if quote:
            if letter == quote and not escaped:
                quote = ""
            escaped = letter == "\\" and not escaped and quote == '"'
        elif letter in "\"'":
            quote = letter
        elif letter in "[]":
            depth += 1 if letter == "[" else -1
        elif letter == mark and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
        if depth < 0 or depth > 8:
            break
    if quote or depth:
        raise _wrong(whole, "has an open quote or bracket", "close it")
    return [*parts, text[start:].strip()]


def _wrong(text: str, fact: str, remedy: str) -> ConfigError:
    shown = text if len(text) <= 200 else text[:197] + "..."
    return ConfigError(f"TASKS={shown!r} {fact}: {remedy}")
