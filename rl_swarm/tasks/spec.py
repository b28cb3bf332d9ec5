"""The TASKS setting: its grammar, and one canonical text for the same tasks.

Reads text and, for own tasks, hashes a file. Never imports reasoning_gym, so `config` and `status` may use it;
`Tasks` loads the library and checks that names and parameters exist.

An own task is code. It comes only from a file that this user named in TASKS or TASK_FILES; an experiment can ask for one by its
hash, but cannot say where it lies.
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

from rl_swarm.config import Config
from rl_swarm.errors import ConfigError
from rl_swarm.values import expanded, number, read

TASK_PRESETS: dict[str, str] = {
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

NOT_INSTALLED = "reasoning-gym not installed"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WEIGHT = re.compile(r"\*\s*(-?[0-9][0-9.]*(?:e-?[0-9]+)?)$", re.IGNORECASE)
_OWN = re.compile(r"(?P<path>.+\.py)(?:@(?P<sha>[0-9a-f]{16}))?")
_STEM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INT = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_BARE = re.compile(r"[^\s\"'\[\],:=]+")
_TOKEN = re.compile(r"""(?s)"(?:\\.|[^"\\])*"|'[^']*'|.""")  # quoted text or a single character
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}


class UnnamedCode(ConfigError):
    """An experiment asks for a task file that this user has not named."""


@dataclass(frozen=True)
class TaskSpec:
    """One task of an experiment.

    An own task also has the path, hash and content of its file. The file is read once: editing it changes no running node. Paths
    differ between nodes, so they are not compared. `name` has the hash, so a peer with another file has another task."""

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
        values = {name: json.dumps(self.config[name], separators=(",", ":")) for name in sorted(self.config)}
        return self.name + "".join(f":{name}={value}" for name, value in values.items())


def tasks_of(config: Config, founder: str = "") -> tuple[TaskSpec, ...]:
    """The tasks of a node. An experiment's TASKS may use only the files that this user named in TASK_FILES.

    Whoever lacks such a file is told to get it from the `founder`."""
    files = [path.strip() for path in (config.task_files or "").split(",") if path.strip()]
    try:
        return parse_tasks(config.tasks, files if config.sources.get("tasks") == "experiment" else None)
    except UnnamedCode as error:
        whom = f"{founder!r}, who" if founder else "whoever"
        raise ConfigError(
            f"{error}: get the file from {whom} began the experiment, read it, and start again with TASK_FILES set to its path"
        ) from None


def parse_tasks(text: str, files: Sequence[str] | None = None) -> tuple[TaskSpec, ...]:
    """Read TASKS: names, parameters, weights, presets and paths of own tasks; raise ConfigError with one line.

    With `files` the text is a stranger's: an own task is looked up by its hash among these files, and nowhere else. The specs are
    sorted, because the order in TASKS has no meaning."""
    return read("TASKS", lambda text: _parse(text, files), text)


def _parse(text: str, files: Sequence[str] | None) -> tuple[TaskSpec, ...]:
    by_id: dict[str, TaskSpec] = {}
    for spec in (spec for entry in _split(text, ",") for spec in _parse_entry(entry, files)):
        if by_id.setdefault(spec.id, spec) is not spec:
            raise ValueError(f"names {spec.id!r} twice: name it once, with a weight such as {spec.id}*2")
    return tuple(by_id[each] for each in sorted(by_id))


def canonical(specs: Iterable[TaskSpec]) -> str:
    """The one text for these specs: equal for two nodes exactly when they train on the same tasks with the same weights.

    It parses back to the same specs. An own task becomes `./name.py@hash`: the reader expects the file in the current folder and
    compares its content with the hash."""
    return ",".join(
        sorted(spec.id + ("" if spec.weight == 1 else f"*{spec.weight!r}".removesuffix(".0").replace("+", "")) for spec in specs)
    )


def named(text: str) -> str:
    """The name of the preset whose canonical text this is, or the text itself."""
    return next((name for name, tasks in TASK_PRESETS.items() if canonical(parse_tasks(tasks)) == text), text)


def tasks_version() -> str:
    """The task library that makes the questions here, as published with every bundle. Reads metadata, imports nothing."""
    try:
        return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def nearest(name: str, known: Sequence[str], most: int = 1) -> str:
    """The remedy for a misspelt name: the nearest real ones, or some of them when none is near."""
    close = " or ".join(map(repr, difflib.get_close_matches(name, known, n=most, cutoff=0.6)))
    some = ", ".join(known[:12]) + (" and others" if len(known) > 12 else "")
    return f"did you mean {close}?" if close else f"there {'is only' if len(known) == 1 else 'are'} {some or 'none'}"


def _parse_entry(entry: str, files: Sequence[str] | None) -> Sequence[TaskSpec]:
    if not entry:
        raise ValueError("has an empty entry: separate names by single commas, as in TASKS=gcd,chain_sum")
    weight = 1.0
    if found := _WEIGHT.search(entry):
        weight = read(f"TASKS: the weight in {entry!r}", number(1e-6, 1e6), found[1])
        entry = entry[: found.start()].rstrip()
    if entry in TASK_PRESETS:
        return [replace(spec, weight=spec.weight * weight) for spec in parse_tasks(TASK_PRESETS[entry])]
    if own := _OWN.fullmatch(entry):
        spec = _own_task(own["path"], own["sha"]) if files is None else _named_task(own["path"], own["sha"] or "", files)
        return [replace(spec, weight=weight)]
    name, *parameters = _split(entry, ":")
    if not _NAME.fullmatch(name):
        raise ValueError(f"has {entry!r}, which is no task: use a reasoning-gym name, a preset, or a path that ends in .py")
    config: dict[str, Any] = {}
    for parameter in parameters:
        key, equals, value = map(str.strip, parameter.partition("="))
        if not equals or not _NAME.fullmatch(key) or key in config:
            raise ValueError(f"has {parameter!r} in {entry!r}: write each parameter once, as {name}:parameter=value")
        if key in ("seed", "size"):
            raise ValueError(f"sets {key} in {entry!r}: leave it out, each node derives it from SEED and NODE_ID")
        config[key] = _parse_value(value)
    return [TaskSpec(name, config, weight)]


def _own_task(given: str, sha: str | None = None) -> TaskSpec:
    path = expanded(given, "TASKS")
    try:
        content = path.read_bytes()
        source = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"names the file {given!r} ({error}): give the path of a readable .py file in UTF-8") from None
    if not _STEM.fullmatch(path.stem):
        raise ValueError(f"names the file {path.name!r}: rename it to at most 64 letters, digits, '.', '_' and '-'")
    digest = hashlib.sha256(content).hexdigest()
    if sha is not None and not digest.startswith(sha):
        raise ValueError(f"wants {given!r} with hash {sha}, this file has {digest[:16]}: copy the file that the experiment uses")
    return TaskSpec(f"{path.stem}@{digest[:16]}", path=str(path.resolve()), sha256=digest, source=source)


def _named_task(given: str, sha: str, files: Sequence[str]) -> TaskSpec:
    """The code that an experiment asks for, from one of the files that this user named."""
    for path in files:
        spec = read("TASK_FILES", _own_task, path)
        if sha and spec.sha256.startswith(sha):
            return spec
    raise UnnamedCode(
        f"the experiment runs code, the task file {Path(given).name!r} with hash {sha or 'none'}, which TASK_FILES does not name"
    )


def _parse_value(value: str) -> Any:
    if value.startswith("[") and value.endswith("]"):
        inner = value[1:-1].strip()
        return [_parse_value(item) for item in _split(inner, ",")] if inner else []
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1]
    if value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError(f"has the value {value!r}: close the quotes, and double a backslash") from None
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INT.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    if _BARE.fullmatch(value):
        return value
    raise ValueError(f'has the value {value!r}: write a number, true, false, a word, "quoted text" or a list such as [1,2]')


def _split(text: str, mark: str) -> list[str]:
    """Split at `mark` outside quotes and brackets."""
    parts, depth = [""], 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        depth += {"[": 1, "]": -1}.get(token, 0)
        if token in ('"', "'") or not 0 <= depth <= 8:
            raise ValueError("has an open quote or bracket: close it")
        if token == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if depth:
        raise ValueError("has an open quote or bracket: close it")
    return [part.strip() for part in parts]
