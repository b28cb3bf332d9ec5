"""One frozen Config: defaults, then the experiment's shared settings, then the environment, then the command line; all checked.

This module reads no file and opens no store. It says which settings a swarm shares; `swarm/experiment.py` publishes them.

Every number has an upper bound, far above any useful value. A typing error or a stranger's experiment then costs one line,
not a node that runs out of memory, time or digits.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rl_swarm.errors import ConfigError
from rl_swarm.packing import METHODS
from rl_swarm.values import (
    Parser,
    boolean,
    choice,
    expanded,
    founder,
    integer,
    name,
    node_name,
    number,
    path,
    place,
    read,
    text,
    token,
)

PREFIXES = {"none": "", "answer": "<answer>", "think": "<think>"}
TRACKERS = ("tensorboard", "trackio", "wandb")
SCHEDULES = ("linear", "cosine", "constant")
DEFAULT_STORE = "./rl-swarm-data"
ALONE = "alone"  # the folder of nodes without a store, and the default name of their experiment
MOST_ROUNDS = 10**6  # two years of one-minute rounds; names in the store have room for that many digits
MOST_OWN = 1_024  # I: as many rollouts as a published file may hold; the paper has 8, I and J together
MOST_EXTERNAL = 4_096  # J
MOST_RANK = 65_536  # of an adapter: wider than any model
MOST_COMPLETIONS = 65_536  # I·G: a round holds all of them in memory and publishes them
MOST_TOKENS = 10**6  # longer than the context of any model
MOST_SECONDS = 1e6  # eleven days: longer than any round


@dataclass(frozen=True)
class Setting:
    """How to read and explain one variable."""

    variable: str
    parse: Parser[Any]
    meaning: str
    secret: bool = False
    shared: bool = False  # published in experiment.json; nodes that join take it from there unless they set their own
    of_model: bool = False  # shared, but not taken by a node that trains another model
    alias: str = ""  # an older name of the variable
    short: str = ""  # the flag that is shown, if it is not the variable's name

    @property
    def flag(self) -> str:
        return self.short or self.long_flag

    @property
    def long_flag(self) -> str:
        return "--" + self.variable.lower().replace("_", "-")


def tracker_names(value: str) -> str:
    """Names of trackers, each once."""
    names = [each.strip() for each in value.split(",") if each.strip()]
    for each in names:
        choice(*TRACKERS)(each)
    return ",".join(dict.fromkeys(names))


ROUNDS = integer(1, MOST_ROUNDS)
ROUNDS_OR_NONE = integer(0, MOST_ROUNDS)
SECONDS = number(0, MOST_SECONDS, above=True)
GROUP = integer(2, 256, why="a single completion has nothing to be compared with, and a file holds at most 256")
TEMPERATURE = number(0, 100, above=True, why="0 explores nothing, beyond 100 all is noise")


def setting(variable: str, default: Any, parse: Parser[Any], meaning: str, **more: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(variable, parse, meaning, **more)})


shared = partial(setting, shared=True)
of_model = partial(setting, shared=True, of_model=True)


@dataclass(frozen=True)
class Config:
    """Every setting of a node. Each field's variable and flag stand beside it."""

    store: str | None = setting("GDRIVE_PATH", None, place, "shared folder or store URL")
    experiment: str | None = setting(
        "EXPERIMENT_NAME", None, name, "name of the experiment, the same on all nodes", short="--experiment"
    )
    role: str = setting("NODE_ROLE", "worker", choice("worker", "coordinator"), "what this node does")
    node_id: str | None = setting("NODE_ID", None, node_name, "name of this node; if not set, made once and kept on this machine")
    home: str = setting("RL_SWARM_HOME", "~/.rl-swarm", path, "local folder for the spool, checkpoints and node names")
    model: str = shared("MODEL_NAME", "Gensyn/Qwen2.5-0.5B-Instruct", path, "nano, auto, a Hugging Face id or a folder")
    seed: int = setting("SEED", 42, integer(0, (1 << 53) - 1), "seed for everything random on this node")
    tasks: str = shared("TASKS", "paper", text, "paper, easy, or a list such as gcd,chain_sum:max_digits=2")
    task_files: str | None = setting("TASK_FILES", None, text, "own task files, comma-separated, that an experiment may ask for")
    max_rounds: int = shared("MAX_ROUNDS", 2000, ROUNDS, "the run ends when the swarm reaches this round")
    own_count: int = shared("NUM_TRAIN_SAMPLES", 8, integer(1, MOST_OWN), "I: own rollouts per round")
    external_count: int = shared("NUM_TRANSPLANT_TREES", 0, integer(0, MOST_EXTERNAL), "J: rollouts per round sampled from peers")
    adaptive: bool = setting("ADAPTIVE_IJ", False, boolean, "lower I while peers write enough, and raise J by as much")
    group_size: int = shared("NUM_GENERATIONS", 8, GROUP, "G: completions per question")
    max_stages: int = setting("MAX_STAGES", 1, integer(1, 1, why="leave it out"), "stages per round; only 1 is supported")
    max_new_tokens: int = of_model("MAX_NEW_TOKENS", 256, integer(1, MOST_TOKENS), "longest completion, in tokens")
    learning_rate: float = of_model("LEARNING_RATE", 1e-5, number(0, 100), "step size of Adam at its highest; 0 freezes the model")
    schedule: str = shared(
        "LEARNING_RATE_SCHEDULE", "linear", choice(*SCHEDULES), "how the learning rate falls until MAX_ROUNDS, or that it does not"
    )
    prompt_examples: int = of_model(
        "PROMPT_EXAMPLES", 0, integer(0, 16, why="each makes every prompt longer"), "answered questions shown in every prompt"
    )
    prefix: str = of_model(
        "COMPLETION_PREFIX", "none", choice(*PREFIXES), "tag that every completion begins with: <answer>, <think> or none"
    )
    format_reward: float = shared(
        "FORMAT_REWARD", 0.0, number(0, 1), "added in training for an <answer>, right or wrong; never counted in reward"
    )
    temperature: float = setting("TEMPERATURE", 1.0, TEMPERATURE, "sampling temperature")
    top_p: float = setting("TOP_P", 1.0, number(0, 1, above=True), "share of the probability to sample from")
    correction: str = setting(
        "EXTERNAL_CORRECTION", "guarded", choice("guarded", "topr", "none"), "which external completions count, and how much"
    )
    external_choice: str = setting(
        "ROLLOUT_CHOICE",
        "informative",
        choice("informative", "uniform", "matched"),
        "which external rollouts to use: informative ones, any (uniform), or those about half right (matched)",
    )
    round_interval: float = shared("COORDINATOR_ROUND_INTERVAL", 60.0, SECONDS, "seconds a round waits for slow nodes")
    round_advance: str = setting("ROUND_ADVANCE", "hybrid", choice("hybrid", "timer"), "when the coordinator closes a round")
    publish_frequency: str = setting(
        "ROLLOUT_PUBLISH_FREQUENCY", "stage", choice("generation", "stage", "round"), "when to publish rollouts"
    )
    window: int = setting(
        "ROLLOUT_WINDOW_ROUNDS", 3, integer(1, 1000), "rounds of external rollouts to use, the current one included"
    )
    fetch_peers: int = setting("ROLLOUT_FETCH_MAX_PEERS", 10, integer(1, 10_000), "most peers to read from in a round")
    fetch_seconds: float = setting("ROLLOUT_FETCH_TIMEOUT_SECONDS", 30.0, SECONDS, "most seconds to spend on reading in a round")
    fetch_cache: bool = setting("ROLLOUT_FETCH_CACHE", True, boolean, "remember external rollouts that were read but not used yet")
    cleanup: bool = setting(
        "ROLLOUT_CLEANUP_ENABLED", False, boolean, "remove old rollouts after each round: own ones; a coordinator everyone's"
    )
    keep_rounds: int = setting("ROLLOUT_KEEP_LAST_N_ROUNDS", 10, ROUNDS, "rounds of rollouts to keep, if no other limit is set")
    keep_days: float | None = setting("ROLLOUT_KEEP_DAYS", None, number(0, 36_500, above=True), "days for which rollouts are kept")
    keep_mb: float | None = setting(
        "ROLLOUT_KEEP_MB", None, number(0, 1e9, above=True), "megabytes of rollouts to keep, own ones; of a coordinator all"
    )
    archive: bool = setting("ROLLOUT_ARCHIVE_OLD", False, boolean, "archive old rollouts instead of deleting them")
    archive_path: str = setting(
        "ROLLOUT_ARCHIVE_PATH", "archives/", text, "where they go: a folder of the shared one, or a path from / on"
    )
    compression: str = setting("ROLLOUT_COMPRESSION", "none", choice(*METHODS), "compression of own rollout files; all are read")
    checkpoint_interval: int = setting("CHECKPOINT_INTERVAL", 10, ROUNDS, "rounds between checkpoints")
    eval_interval: int = setting("EVAL_INTERVAL", 100, ROUNDS_OR_NONE, "rounds between held-out evaluations; 0 for none")
    test_mode: bool = setting("TEST_MODE", False, boolean, "quick check: 3 rounds, I=4, G=4 unless set otherwise")
    cpu_only: bool = setting("CPU_ONLY", False, boolean, "use the CPU even if there is a GPU")
    dtype: str = setting("DTYPE", "auto", choice("auto", "float32", "bfloat16", "float16"), "number format of the weights")
    lora_rank: int = setting("LORA_RANK", 0, integer(0, MOST_RANK), "train adapters of this rank; 0 trains all weights")
    hub_token: str | None = setting(
        "HUGGINGFACE_ACCESS_TOKEN",
        None,
        text,
        "token to push models with, and for gated ones; HF_TOKEN only downloads",
        secret=True,
    )
    hub_push_interval: int = setting(
        "HUB_PUSH_INTERVAL", 0, ROUNDS_OR_NONE, "rounds between pushes to the hub; 0 pushes at the end"
    )

    identity: str | None = setting(
        "SWARM_IDENTITY",
        None,
        path,
        "key file to sign with; created if it does not exist (older name: IDENTITY_PATH)",
        alias="IDENTITY_PATH",
    )
    founder: str | None = setting(
        "SWARM_FOUNDER", None, founder, "founder's KEY, as in STORE/EXPERIMENT#KEY; with it, nothing unsigned is accepted"
    )
    coordinator_keys: str | None = setting(
        "SWARM_COORDINATOR_KEYS", None, path, "further public keys that may announce rounds: a file, or a comma-separated list"
    )
    require_signatures: bool = setting("SWARM_REQUIRE_SIGNATURES", False, boolean, "accept nothing unsigned from peers")
    allowed_keys: str | None = setting(
        "SWARM_ALLOWED_KEYS", None, path, "accept only nodes with these public keys: a file, or a comma-separated list"
    )
    web_token: str | None = setting(
        "WEB_TOKEN",
        None,
        token,
        "token that 'rl-swarm web' requires; generated if other machines can connect",
        secret=True,
    )
    track: str | None = setting(
        "TRACK", None, tracker_names, "where to also write the figures: tensorboard, trackio, wandb, comma-separated"
    )

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def explicit(self, field_name: str) -> bool:
        return self.sources.get(field_name) in {"environment", "command line"}

    @property
    def node(self) -> str:
        """The node id, which must be known by now."""
        require(self, "node_id")
        return str(self.node_id)

    @property
    def least_kept(self) -> int:
        """Rounds of rollouts that are never removed: the window, and one more for nodes that are a round behind."""
        return self.window + 1

    @property
    def most_kept(self) -> int | None:
        """Rounds of rollouts to keep; None for no limit. The default counts only if no other limit is set."""
        others = self.keep_days is not None or self.keep_mb is not None
        return self.keep_rounds if self.explicit("keep_rounds") or not others else None

    @property
    def store_url(self) -> str:
        """The store that nodes share or, for a node alone, a folder on this machine."""
        return self.store or str(expanded(self.home, "RL_SWARM_HOME") / ALONE)

    @property
    def experiment_name(self) -> str:
        if self.store is not None:
            require(self, "experiment")
        return self.experiment or ALONE


SETTINGS: dict[str, Setting] = {item.name: item.metadata["setting"] for item in fields(Config) if "setting" in item.metadata}
VARIABLES = {item.variable for item in SETTINGS.values()}
ALIASES = {item.alias for item in SETTINGS.values() if item.alias}
SHARED_VARIABLES = {item.variable for item in SETTINGS.values() if item.shared}

# Names in the documents of the original systems, and what became of them.
OLD_NAMES = {
    "GENSYN_RESET_CONFIG": "there is no configuration file to reset, 'rl-swarm config' shows the settings",
    "CONNECT_TO_TESTNET": "no blockchain is needed, nodes share the folder that GDRIVE_PATH names",
    "SWARM_CONTRACT": "no blockchain is needed, the coordinator announces rounds in the folder that GDRIVE_PATH names",
    "PRG_CONTRACT": "there is no prediction market",
    "PRG_GAME": "there is no prediction market",
    "FETCH_MAX_PEERS": "set ROLLOUT_FETCH_MAX_PEERS instead",
    "FETCH_TIMEOUT_SECONDS": "set ROLLOUT_FETCH_TIMEOUT_SECONDS instead",
    "CACHE_ROLLOUTS": "set ROLLOUT_FETCH_CACHE instead",
}

TEST_MODE = {"max_rounds": 3, "own_count": 4, "group_size": 4}
WITH_NANO = {"tasks": "easy", "max_new_tokens": 24, "learning_rate": 2e-4}


def load(
    environment: Mapping[str, str], flags: Mapping[str, str | None] | None = None, shared: Mapping[str, str] | None = None
) -> Config:
    """Build a Config. `flags` has field names as keys and None for a flag that was not given; `shared` has variables."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field_name, item in SETTINGS.items():  # MODEL_NAME comes before those that depend on it
        of_another = item.of_model and not _same_model(values.get("model"), (shared or {}).get("MODEL_NAME"))
        for source, raw in (
            ("command line", (flags or {}).get(field_name)),
            ("environment", environment.get(item.variable, environment.get(item.alias))),
            ("experiment", None if of_another else (shared or {}).get(item.variable)),
        ):
            if raw is not None:
                value = read(item.variable, item.parse, raw, hidden=item.secret)  # checked even if a stronger source wins
                values.setdefault(field_name, value)
                sources.setdefault(field_name, source)
    for source, applies, defaults in (
        ("TEST_MODE", values.get("test_mode"), TEST_MODE),
        ("MODEL_NAME=nano", values.get("model") == "nano", WITH_NANO),
    ):
        for field_name in defaults.keys() - values.keys() if applies else ():
            values[field_name] = defaults[field_name]
            sources[field_name] = source
    warnings = [line for variable in environment if (line := old_name(variable))] + _near_misses(environment)
    config = Config(**values, sources=sources, warnings=tuple(warnings))
    _check_together(config)
    if config.cleanup and config.most_kept is not None and config.most_kept < config.least_kept:
        line = (
            f"ROLLOUT_KEEP_LAST_N_ROUNDS is {config.most_kept}, and {config.least_kept} rounds are kept: nodes read "
            f"{config.window} rounds (ROLLOUT_WINDOW_ROUNDS), and some may be a round behind"
        )
        config = replace(config, warnings=(*warnings, line))
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
    """The settings that the first node of an experiment publishes, as text for the environment."""
    return {item.variable: str(getattr(config, field_name)) for field_name, item in SETTINGS.items() if item.shared}


def require(config: Config, *field_names: str) -> None:
    for item in (SETTINGS[field_name] for field_name in field_names if getattr(config, field_name) is None):
        raise ConfigError(f"{item.variable} is not set ({item.meaning}): set it or give {item.flag}")


def require_run(config: Config) -> None:
    """Raise ConfigError unless the settings name a run, or a node alone has left one on this machine."""
    if config.store is not None or not Path(config.store_url).is_dir():
        require(config, "store", "experiment")


def model_folder(name: str) -> Path:
    """The folder that MODEL_NAME may mean; raise ConfigError if it exists and its name could also be a model's on the hub."""
    folder = expanded(name, "MODEL_NAME")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name, re.ASCII) and folder.is_dir():
        raise ConfigError(
            f"MODEL_NAME may mean a model on the hub or the folder of that name here, got {name!r}: write ./{name} for the folder, "
            "or start elsewhere"
        )
    return folder


def _check_together(config: Config) -> None:
    if config.own_count * config.group_size > MOST_COMPLETIONS:
        raise ConfigError(
            f"NUM_TRAIN_SAMPLES times NUM_GENERATIONS must be at most {MOST_COMPLETIONS:,}, got {config.own_count} times "
            f"{config.group_size}: a round holds all its completions in memory, lower one of the two"
        )


def _same_model(ours: str | None, theirs: str | None) -> bool:
    """Whether two nodes train the same model. An experiment knows only the last part of a folder's name."""
    return ours is not None and theirs is not None and ours.rstrip("/").rpartition("/")[2] == theirs.rpartition("/")[2]


def old_name(variable: str) -> str:
    """What became of a setting of the original systems, in one line; empty for any other name."""
    answer = OLD_NAMES.get(variable.upper())
    return f"{variable} has no effect: {answer}" if answer else ""


def _near_misses(environment: Mapping[str, str]) -> list[str]:
    """Warn about variables that look like ours. Only warn: the environment belongs to everyone."""
    warnings = []
    for variable in (each for each in environment if "_" in each and each not in VARIABLES | ALIASES and not old_name(each)):
        for close in difflib.get_close_matches(variable, VARIABLES, n=1, cutoff=0.88):
            warnings.append(f"{variable} is not a setting of RL Swarm and has no effect: did you mean {close}?")
    return warnings
