"""One frozen Config: defaults, then the experiment's shared settings, then the environment, then the command line; all checked.

This module reads no file and opens no store. Which settings a swarm shares is said here (`shared`), how they travel in
`swarm/experiment.py`.

Every number has an upper bound. The bounds are far above anything useful: they are there so that a slip of the keyboard, or a
stranger's experiment, is one line instead of a node that runs out of memory, time or digits.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from rl_swarm.errors import ConfigError

T = TypeVar("T")

DEFAULT_STORE = "./rl-swarm-data"
ALONE = "alone"  # the folder of nodes without a store, and the experiment of one that was given no name
MOST_ROUNDS = 10**6  # two years of rounds of a minute; a name in the store has room for so many digits
MOST_OWN = 1_024  # I: as many rollouts as a published file may hold; the paper has 8, I and J together
MOST_EXTERNAL = 4_096  # J
MOST_RANK = 65_536  # of an adapter: wider than any model
MOST_COMPLETIONS = 65_536  # I·G: all of them are held in memory, and published, in one round
MOST_TOKENS = 10**6  # longer than the context of any model
MOST_SECONDS = 1e6  # eleven days: longer than any round
NAME_RULE = "use 1 to 64 letters, digits, '.', '_' or '-', not starting with a dot"
LONGEST_SHOWN = 200  # characters of a wrong value
PATH_RULE = "write the whole path, from / on, or set HOME"


@dataclass(frozen=True)
class Setting:
    """How one variable is read: `parse` turns text into a value or raises ValueError with what is expected and why."""

    variable: str
    parse: Callable[[str], Any]
    meaning: str
    secret: bool = False
    shared: bool = False  # published in experiment.json, taken from there by nodes that do not say otherwise

    @property
    def flag(self) -> str:
        return "--" + self.variable.lower().replace("_", "-")


def name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", text):
        raise ValueError(f"is not a valid name: {NAME_RULE}")
    return text


def node_name(text: str) -> str:
    if re.search(r"\.\d+$", name(text)):
        raise ValueError("must not end in a dot and digits: such names are kept for the files of single questions")
    return text


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty: give a value or leave the variable out")
    return value


def founder(value: str) -> str:
    """A public key, and after a dash the id of the experiment that it started, where somebody knows it."""
    said = value.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}(-[0-9a-f]{8,64})?", said):
        raise ValueError("is no public key: it has 64 hexadecimal digits, as a node prints them when it starts")
    return said


def path(value: str) -> str:
    """Text that may be a path; a '~' in front must be one that can be followed here."""
    try:
        Path(text(value)).expanduser()
    except RuntimeError:
        raise ValueError(f"begins with a home folder that is not known here: {PATH_RULE}") from None
    return value


def expanded(value: str, variable: str) -> Path:
    """A path as the user means it, with '~' followed; for a default, which no parser has seen, that may be impossible too."""
    return Path(read(variable, path, value)).expanduser()


def model_folder(name: str) -> Path:
    """The folder that a MODEL_NAME would be; raise ConfigError where it is there and looks like a name on the hub, ORG/NAME."""
    folder = expanded(name, "MODEL_NAME")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name, re.ASCII) and folder.is_dir():
        raise ConfigError(
            f"MODEL_NAME may be a name on the hub, and a folder of that name lies here, got {name!r}: write ./{name} for the "
            "folder, or start elsewhere"
        )
    return folder


def boolean(value: str) -> bool:
    word = value.strip().lower()
    if word in {"true", "1", "yes", "on"}:
        return True
    if word in {"false", "0", "no", "off"}:
        return False
    raise ValueError("is neither true nor false: use true, false, 1, 0, yes, no, on or off")


def choice(*options: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in options:
            raise ValueError(f"is not known: use {' or '.join(options)}")
        return value

    return parse


def integer(least: int, most: int, why: str = "") -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number: write digits only") from None
        _check_range(number, least, most, why)
        return number

    return parse


def number(least: float, most: float, why: str = "", above: bool = False) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            result = float(value)
        except ValueError:
            raise ValueError("must be a number: write it like 0.5 or 1e-5") from None
        if not math.isfinite(result):
            raise ValueError("must be a finite number: write it like 0.5 or 1e-5")
        if above and result == least:
            raise ValueError(f"must be above {least:g}" + (f": {why}" if why else ""))
        _check_range(result, least, most, why)
        return result

    return parse


def _check_range(value: float, least: float, most: float, why: str) -> None:
    reason = f": {why}" if why else ": choose a value in that range"
    if value < least:
        raise ValueError(f"must be at least {_figure(least)}{reason}")
    if value > most:
        raise ValueError(f"must be at most {_figure(most)}{reason}")


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def single_stage(value: str) -> int:
    if integer(1, MOST_ROUNDS)(value) != 1:
        raise ValueError("must be 1: games of several stages are not supported, leave MAX_STAGES out")
    return 1


def setting(variable: str, default: Any, parse: Callable[[str], Any], meaning: str, **more: bool) -> Any:
    return field(default=default, metadata={"setting": Setting(variable, parse, meaning, **more)})


@dataclass(frozen=True)
class Config:
    """Every setting of a node. Names follow the glossary; each field's variable and flag stand beside it."""

    store: str | None = setting("GDRIVE_PATH", None, path, "shared folder or store URL")
    experiment: str | None = setting("EXPERIMENT_NAME", None, name, "name of the experiment, the same on all nodes")
    role: str = setting("NODE_ROLE", "worker", choice("worker", "coordinator"), "what this node does")
    node_id: str | None = setting("NODE_ID", None, node_name, "name of this node; made once and kept on this machine if left out")
    home: str = setting("RL_SWARM_HOME", "~/.rl-swarm", path, "local folder for spool, checkpoints and node names")
    model: str = setting(
        "MODEL_NAME", "Gensyn/Qwen2.5-0.5B-Instruct", path, "nano, auto, a Hugging Face id or a folder", shared=True
    )
    seed: int = setting("SEED", 42, integer(0, (1 << 53) - 1), "seed of everything random on this node")
    tasks: str = setting("TASKS", "paper", text, "paper, easy, or a list such as gcd,chain_sum:max_digits=2", shared=True)
    task_files: str | None = setting(
        "TASK_FILES", None, text, "files with own tasks that this node may run where the experiment asks for them, with commas"
    )
    max_rounds: int = setting(
        "MAX_ROUNDS", 2000, integer(1, MOST_ROUNDS), "the run is done when the swarm's round reaches this", shared=True
    )
    own_count: int = setting("NUM_TRAIN_SAMPLES", 8, integer(1, MOST_OWN), "I: own rollouts per round", shared=True)
    external_count: int = setting(
        "NUM_TRANSPLANT_TREES", 0, integer(0, MOST_EXTERNAL), "J: rollouts per round sampled from peers", shared=True
    )
    group_size: int = setting(
        "NUM_GENERATIONS",
        8,
        integer(2, 256, why="a single completion has nothing to be compared with, 256 is what a file may hold"),
        "G: completions per question",
        shared=True,
    )
    max_stages: int = setting("MAX_STAGES", 1, single_stage, "stages per round; only 1 is supported")
    max_new_tokens: int = setting("MAX_NEW_TOKENS", 256, integer(1, MOST_TOKENS), "longest completion, in tokens")
    learning_rate: float = setting("LEARNING_RATE", 1e-5, number(0, 100), "step size of Adam; 0 freezes the model")
    temperature: float = setting(
        "TEMPERATURE", 1.0, number(0, 100, above=True, why="0 explores nothing, beyond 100 all is noise"), "sampling temperature"
    )
    top_p: float = setting("TOP_P", 1.0, number(0, 1, above=True), "share of probability that is sampled from")
    correction: str = setting(
        "EXTERNAL_CORRECTION", "guarded", choice("guarded", "topr", "none"), "which external completions count, and how much"
    )
    external_choice: str = setting(
        "ROLLOUT_CHOICE",
        "informative",
        choice("informative", "uniform", "matched"),
        "which of peers' rollouts are taken: any informative, any at all, or those about half right",
    )
    round_interval: float = setting(
        "COORDINATOR_ROUND_INTERVAL", 60.0, number(0, MOST_SECONDS, above=True), "seconds a round waits for slow nodes", shared=True
    )
    round_advance: str = setting("ROUND_ADVANCE", "hybrid", choice("hybrid", "timer"), "when the coordinator closes a round")
    publish_frequency: str = setting(
        "ROLLOUT_PUBLISH_FREQUENCY", "stage", choice("generation", "stage", "round"), "when rollouts are published"
    )
    window: int = setting(
        "ROLLOUT_WINDOW_ROUNDS", 3, integer(1, 1000), "rounds from which peers' rollouts are taken, this one included"
    )
    fetch_peers: int = setting("ROLLOUT_FETCH_MAX_PEERS", 10, integer(1, 10_000), "most peers read from in one round")
    fetch_seconds: float = setting(
        "ROLLOUT_FETCH_TIMEOUT_SECONDS", 30.0, number(0, MOST_SECONDS, above=True), "most seconds spent reading in one round"
    )
    fetch_cache: bool = setting("ROLLOUT_FETCH_CACHE", True, boolean, "remember peers' rollouts that were read but not used yet")
    cleanup: bool = setting(
        "ROLLOUT_CLEANUP_ENABLED", False, boolean, "remove old rollouts (this and all KEEP and ARCHIVE: no effect in this version)"
    )
    keep_rounds: int = setting(
        "ROLLOUT_KEEP_LAST_N_ROUNDS", 10, integer(1, MOST_ROUNDS), "rounds of rollouts that cleaning up keeps"
    )
    keep_days: float | None = setting(
        "ROLLOUT_KEEP_DAYS", None, number(0, 36_500, above=True), "days of rollouts that cleaning up keeps"
    )
    keep_mb: float | None = setting(
        "ROLLOUT_KEEP_MB", None, number(0, 1e9, above=True), "megabytes of rollouts that cleaning up keeps"
    )
    archive: bool = setting("ROLLOUT_ARCHIVE_OLD", False, boolean, "archive old rollouts instead of deleting them")
    archive_path: str = setting("ROLLOUT_ARCHIVE_PATH", "archives/", text, "where archived rollouts go")
    compression: str = setting("ROLLOUT_COMPRESSION", "none", choice("none"), "compression of rollout files")
    checkpoint_interval: int = setting("CHECKPOINT_INTERVAL", 10, integer(1, MOST_ROUNDS), "rounds between checkpoints")
    eval_interval: int = setting("EVAL_INTERVAL", 20, integer(0, MOST_ROUNDS), "rounds between held-out evaluations; 0 for none")
    test_mode: bool = setting("TEST_MODE", False, boolean, "quick check: 3 rounds, I 4, G 4 where nothing else is said")
    cpu_only: bool = setting("CPU_ONLY", False, boolean, "use the CPU even if there is a GPU")
    dtype: str = setting("DTYPE", "auto", choice("auto", "float32", "bfloat16", "float16"), "number format of the weights")
    lora_rank: int = setting("LORA_RANK", 0, integer(0, MOST_RANK), "train adapters of this rank; 0 trains all weights")
    hub_token: str | None = setting(
        "HUGGINGFACE_ACCESS_TOKEN", None, text, "token for gated models; with it, workers also push what they trained", secret=True
    )
    hub_push_interval: int = setting(
        "HUB_PUSH_INTERVAL", 0, integer(0, MOST_ROUNDS), "rounds between pushes to the hub; 0 pushes only at the end"
    )

    identity: str | None = setting(
        "SWARM_IDENTITY", None, path, "key file that signs what this node publishes; made if it is not there"
    )
    founder: str | None = setting(
        "SWARM_FOUNDER", None, founder, "public key of whoever started the experiment; nothing unsigned is believed then"
    )
    coordinator_keys: str | None = setting(
        "SWARM_COORDINATOR_KEYS",
        None,
        path,
        "public keys that may announce rounds besides the founder's: a file, or a list with commas",
    )
    require_signatures: bool = setting("SWARM_REQUIRE_SIGNATURES", False, boolean, "take nothing from peers that is not signed")
    allowed_keys: str | None = setting(
        "SWARM_ALLOWED_KEYS", None, path, "take part only with these public keys: a file, or a list with commas"
    )

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def explicit(self, field_name: str) -> bool:
        return self.sources.get(field_name) in {"environment", "command line"}

    @property
    def node(self) -> str:
        """The node id, where it must be known by now."""
        return _required(self.node_id, "node_id")

    @property
    def store_url(self) -> str:
        """Where the run lies: in the store that nodes share, or for a node alone on this machine's own disk."""
        return self.store or str(expanded(self.home, "RL_SWARM_HOME") / ALONE)

    @property
    def experiment_name(self) -> str:
        return self.experiment or (ALONE if self.store is None else _required(self.experiment, "experiment"))


SETTINGS: dict[str, Setting] = {item.name: item.metadata["setting"] for item in fields(Config) if "setting" in item.metadata}
VARIABLES = {item.variable for item in SETTINGS.values()}

TEST_MODE = {"max_rounds": 3, "own_count": 4, "group_size": 4}
WITH_NANO = {"tasks": "easy", "max_new_tokens": 24, "learning_rate": 3e-4}


def load(
    environment: Mapping[str, str], flags: Mapping[str, str | None] | None = None, shared: Mapping[str, str] | None = None
) -> Config:
    """Build a Config. `flags` and `shared` are keyed by field name and by variable; a flag that is None was not given."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field_name, item in SETTINGS.items():
        for source, raw in (
            ("command line", (flags or {}).get(field_name)),
            ("environment", environment.get(item.variable)),
            ("experiment", (shared or {}).get(item.variable)),
        ):
            if raw is not None:
                value = read(item.variable, item.parse, raw, hidden=item.secret)  # checked even where a stronger source wins
                values.setdefault(field_name, value)
                sources.setdefault(field_name, source)
    if values.get("test_mode"):
        _fill(values, sources, TEST_MODE, "TEST_MODE")
    if values.get("model") == "nano":
        _fill(values, sources, WITH_NANO, "MODEL_NAME=nano")
    warnings = _near_misses(environment)
    if values.get("cleanup"):
        warnings.append("ROLLOUT_CLEANUP_ENABLED has no effect in this version: nothing is removed or archived")
    config = Config(**values, sources=sources, warnings=tuple(warnings))
    _check_together(config)
    return config


def describe(config: Config) -> list[dict[str, Any]]:
    """Every setting with its value, source and meaning, for people and programs; secrets are masked."""
    rows = []
    for field_name, item in SETTINGS.items():
        value = getattr(config, field_name)
        shown = "(set, hidden)" if item.secret and value is not None else value
        source = config.sources.get(field_name, "default")
        rows.append({"variable": item.variable, "value": shown, "source": source, "meaning": item.meaning})
    return rows


def shared_settings(config: Config) -> dict[str, str]:
    """What the first node of an experiment publishes for those who join, as the environment would hold it."""
    return {item.variable: str(getattr(config, field_name)) for field_name, item in SETTINGS.items() if item.shared}


def shared_variables() -> set[str]:
    return {item.variable for item in SETTINGS.values() if item.shared}


def require(config: Config, *field_names: str) -> None:
    for field_name in field_names:
        _required(getattr(config, field_name), field_name)


def require_run(config: Config) -> None:
    """Raise ConfigError unless it is said whose run is meant, or a node alone has left one on this machine."""
    if config.store is not None or not Path(config.store_url).is_dir():
        require(config, "store", "experiment")


def _required(value: str | None, field_name: str) -> str:
    if value is None:
        item = SETTINGS[field_name]
        raise ConfigError(f"{item.variable} is not set: it names the {item.meaning}; set it or give {item.flag}")
    return value


def read(variable: str, parse: Callable[[str], T], raw: str, hidden: bool = False) -> T:
    """Parse what somebody typed; raise ConfigError with the variable or flag, the value unless it is hidden, and the remedy."""
    try:
        if not is_text(raw):
            raise ValueError("is not valid UTF-8: type it again")
        return parse(raw)
    except ValueError as error:
        claim, _, remedy = str(error).partition(": ")
        shown = "a hidden value" if hidden else repr(raw if len(raw) <= LONGEST_SHOWN else raw[:LONGEST_SHOWN] + "…")
        raise ConfigError(f"{variable} {claim}, got {shown}" + (f": {remedy}" if remedy else "")) from None


def is_text(value: str) -> bool:
    """Whether a value is text; Python keeps bytes of the command line and the environment that are none as half characters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _fill(values: dict[str, Any], sources: dict[str, str], defaults: Mapping[str, Any], source: str) -> None:
    for field_name, value in defaults.items():
        if field_name not in values:
            values[field_name] = value
            sources[field_name] = source


def _check_together(config: Config) -> None:
    if config.own_count * config.group_size > MOST_COMPLETIONS:
        raise ConfigError(
            f"NUM_TRAIN_SAMPLES times NUM_GENERATIONS must be at most {MOST_COMPLETIONS:,}, got {config.own_count} times "
            f"{config.group_size}: a round holds all its completions in memory, lower one of the two"
        )
    if config.cleanup and config.keep_rounds <= config.window:
        raise ConfigError(
            f"ROLLOUT_KEEP_LAST_N_ROUNDS must exceed ROLLOUT_WINDOW_ROUNDS ({config.window}), got {config.keep_rounds}: "
            "cleaning up would remove what peers still read"
        )


def _near_misses(environment: Mapping[str, str]) -> list[str]:
    """A variable that looks like ours but is not is a warning only: the environment belongs to everyone."""
    warnings = []
    for variable in environment:
        if variable in VARIABLES or "_" not in variable:
            continue
        close = difflib.get_close_matches(variable, VARIABLES, n=1, cutoff=0.88)
        if close:
            warnings.append(f"{variable} is not a setting of RL Swarm and has no effect: did you mean {close[0]}?")
    return warnings
