"""Plan the runs that answer whether sharing helps: presets, arms, seeds and cells. Nothing here runs, reads or writes.

A *split* is I own and J external rollouts a round, written I/J. An *arm* is one thing to compare: a split, an ablation of the
best one, or the baseline over as many rounds as cost what the best one costs: the learning rate falls to the end of a run, so a
longer run that is read off in the middle would be no equal. A *cell* is one arm with one seed, that is one whole swarm. Arms are
compared on the same seeds. Horizon, learning rate and best split are fixed on pilot seeds, which are never reported; reported seeds
are run afterwards and once.
"""

import hashlib
import json
import math
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from statistics import fmean

from rl_swarm.config import SETTINGS, load
from rl_swarm.errors import ConfigError
from rl_swarm.show.drawing import smooth
from rl_swarm.swarm.experiment import published_settings
from rl_swarm.tasks import tasks_version
from rl_swarm.text import counted

REPORTED_SEEDS = range(9, 101)  # smaller ones were used in development
PILOT_SEEDS = range(101, 104)
QUICK_SEEDS = range(201, 301)  # a quick look must not show reported seeds
FEW_SEEDS = 3  # for every arm but the baseline, the best split, and the adaptive one, which workers can have
FEW_NODES = 4
MOST_NODES = 1000
SMOOTHED_ROUNDS = 10
PLATEAU = 0.95
HORIZON_RULE = (
    f"the horizon is where 8/0 reaches its plateau with a constant learning rate: the first round at which its mean own reward, "
    f"smoothed over {SMOOTHED_ROUNDS} rounds and averaged over the pilot seeds {PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}, is within "
    f"{round(100 * (1 - PLATEAU))} % of its mean in the last quarter of the pilot run, rounded up to a multiple of ten"
)
DOCUMENTS_RULE = "the horizon is the 2000 rounds of the paper and the reference documents"
# Settings that the plan decides, and the option to use instead.
PLANNED = {
    "seed": "--seeds",
    "max_rounds": "--rounds",
    "own_count": "--splits",
    "external_count": "--splits",
    "adaptive": "--ablations adaptive",
    "store": "--output",
    "experiment": "--output",
    "node_id": "--nodes",
    "role": "--nodes",
    "home": "--output",
}
LEARNER = "1"  # raised by hand when a cell run by newer code would no longer give the same rows
# Settings on which a result depends besides those that a swarm shares.
DECISIVE = ("temperature", "top_p", "correction", "external_choice", "window", "fetch_peers", "dtype", "lora_rank", "eval_interval")
QUANTISED = "quantised:"  # before a model's name: that model with coarse weights, see cell.py


@dataclass(frozen=True, order=True)
class Split:
    own: int
    external: int

    def __str__(self) -> str:
        return f"{self.own}/{self.external}"

    @property
    def total(self) -> int:
        return self.own + self.external


def parse_split(text: str) -> Split:
    found = re.fullmatch(r"\s*([0-9]{1,3})/([0-9]{1,3})\s*", text)
    if not found or int(found[1]) < 1:
        raise ConfigError(f"a split is written I/J with I at least 1, got {text!r}: for instance 4/4")
    return Split(int(found[1]), int(found[2]))


def parse_splits(text: str) -> list[Split]:
    """The splits to compare, the one without sharing first."""
    splits = sorted(dict.fromkeys(map(parse_split, text.split(","))), key=lambda split: split.external > 0)
    if sum(split.external == 0 for split in splits) != 1:
        raise ConfigError(f"--splits needs exactly one split without sharing to compare with, got {text!r}: for instance 8/0,4/4")
    return splits


@dataclass(frozen=True)
class Arm:
    """`settings` are variables that differ from the preset's; `models` are given to the nodes in turn."""

    name: str
    split: Split
    nodes: int
    settings: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    adaptive: bool = False
    ablation: str = ""  # which question this arm belongs to; none for the table itself
    rounds: int = 0  # instead of the preset's
    equal: str = ""  # the cost, writing or compute, that its rounds make equal to the best arm's

    @property
    def in_table(self) -> bool:
        return not (self.ablation or self.equal)


@dataclass(frozen=True)
class Cell:
    """One swarm to run: everything that its result depends on, versions included."""

    arm: Arm
    seed: int
    rounds: int
    settings: Mapping[str, str]
    versions: Mapping[str, str]

    @property
    def id(self) -> str:
        """A file name that changes with anything that could change the result, and with nothing else: studies share cells."""
        arm, places = self.arm, range(max(1, len(self.arm.models)))
        decisive = [_resolved(self.environment(place)) for place in places]
        text = json.dumps([arm.nodes, arm.adaptive, decisive, self.seed, self.rounds, dict(self.versions)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{arm.split.own}-{arm.split.external}_nodes{arm.nodes}_rounds{self.rounds}_seed{self.seed}_{digest}"

    def environment(self, place: int) -> dict[str, str]:
        """The environment of the node at this place."""
        models = self.arm.models
        return {
            **self.settings,
            **self.arm.settings,
            **({"MODEL_NAME": models[place % len(models)]} if models else {}),
            **({"ADAPTIVE_IJ": "true"} if self.arm.adaptive else {}),
            "NUM_TRAIN_SAMPLES": str(self.arm.split.own),
            "NUM_TRANSPLANT_TREES": str(self.arm.split.external),
            "MAX_ROUNDS": str(self.rounds),
            "SEED": str(self.seed),
        }

    @property
    def effort(self) -> float:
        """Relative work, to estimate the time left: own rollouts are written and trained on, external ones only trained on."""
        return self.rounds * self.arm.nodes * (self.arm.split.own + 0.5 * self.arm.split.external)


def _resolved(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings on which a result depends, defaults included."""
    model = environment.get("MODEL_NAME", "")
    config = load({**environment, **({"MODEL_NAME": model.removeprefix(QUANTISED)} if model else {})})
    own = {SETTINGS[name].variable: str(getattr(config, name)) for name in DECISIVE}
    return published_settings(config) | own | {"weights": "coarse" if model.startswith(QUANTISED) else "as they are"}


@dataclass(frozen=True)
class Asked:
    """The question of a study. All of it is fixed before a reported seed is run."""

    title: str = "Does sharing help?"
    change: str = "sharing"  # what helped or hurt, where an arm differs from the baseline
    outcome: str = "cumulative"  # the measure that answers it: cumulative own reward, or held_out accuracy at the end
    as_good_within: float | None = None  # a difference of held-out accuracy that would not matter


PAPERS_QUESTION = Asked()


@dataclass(frozen=True)
class Preset:
    """`best` is the sharing split that did best on the pilot seeds, named before a reported seed is run."""

    about: str
    settings: Mapping[str, str]
    asked: Asked = PAPERS_QUESTION
    equal: Mapping[str, float] = field(default_factory=dict)  # by cost: the best arm's of a round, in rounds of the baseline
    nodes: int = 8
    nodes_alone: int = MOST_NODES  # at most, of an arm that shares nothing: its nodes are alone, so a few show what more would
    splits: str = "8/0,6/2,4/4,2/6"
    arms: tuple[Arm, ...] = ()  # instead of splits, where the arms differ in more
    best: str = "4/4"
    rounds: int = 2000
    pilot_rounds: int = 0  # none: nothing is fixed by a pilot of this preset
    rule: str = DOCUMENTS_RULE  # by which the horizon was fixed, for the report
    seeds: int = 8
    seeds_from: range = REPORTED_SEEDS
    quick_settings: Mapping[str, str] = field(default_factory=dict)
    pilot_settings: Mapping[str, str] = field(default_factory=dict)


# One step beyond `easy` in each of its tasks: nano is paid for one completion in two hundred, so a node alone finds something to
# learn from in every second round only. On `easy` itself a node alone is never stuck, and sharing brings little.
_HARDER = (
    "chain_sum:max_terms=4:max_digits=2,"
    "basic_arithmetic:max_terms=3:max_digits=2:operators=[+,-,*]:allow_parentheses=false,"
    "gcd:max_value=100,"
    "count_primes:max_n=100,"
    "spell_backward:max_word_len=5"
)
_NANO = {
    "MODEL_NAME": "nano",
    "CPU_ONLY": "true",
    "TASKS": _HARDER,
    "MAX_NEW_TOKENS": "24",
    "LEARNING_RATE": "3e-4",
    "NUM_GENERATIONS": "8",
    "EVAL_INTERVAL": "40",
}

# What a swarm knows at the end, on tasks that nano half knows: with a rate that falls, reading peers acts like a large batch.
_EASY = {**_NANO, "TASKS": "easy", "LEARNING_RATE": "2e-4", "EVAL_INTERVAL": "100", "ROLLOUT_FETCH_MAX_PEERS": "15"}
_KNOWLEDGE_RULE = (
    "300 rounds, fixed before a reported seed was run, and the learning rate that was the best of three on a pilot seed for 8/0, "
    "16/0, 4/12 and 4/28 alike"
)


def _sized(nodes: int) -> Arm:
    """Every node writes 4 rollouts and reads all of its peers'."""
    split = Split(4, 4 * (nodes - 1))
    return Arm(f"{counted(nodes, 'node')}, {split}", split, nodes)


# A real model, small enough for two cores. Tasks and prompt are what `TASKS=easy rl-swarm probe --seconds 240` recommends for it:
# without examples it never writes <answer>.
_SMOLLM2 = {
    "MODEL_NAME": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "CPU_ONLY": "true",
    "TASKS": (
        "basic_arithmetic:allow_parentheses=false:max_digits=1:max_terms=2:operators=[+,-,*],"
        "chain_sum:max_digits=1:max_terms=2,"
        "chain_sum:max_digits=1:max_terms=3,"
        "count_primes:max_n=30,"
        "gcd:max_numbers=3:max_value=10000:min_value=100,"
        "gcd:max_numbers=4:max_value=100000:min_value=100,"
        "spell_backward:max_word_len=5,"
        "spell_backward:max_word_len=9"
    ),
    "PROMPT_EXAMPLES": "3",
    "MAX_NEW_TOKENS": "16",
    "LEARNING_RATE": "3e-5",
    "NUM_GENERATIONS": "8",
    "EVAL_INTERVAL": "150",  # before and after: 392 questions take this model minutes
}


PRESETS = {
    "nano": Preset(
        about="the embedded model on a CPU",
        settings=_NANO,
        equal={"writing": 0.5},
        rounds=90,  # printed by `reproduce --pilot`
        pilot_rounds=120,
        rule=HORIZON_RULE,
        quick_settings={"TASKS": "easy"},  # a few rounds are enough to learn something
        pilot_settings={"LEARNING_RATE_SCHEDULE": "constant", "EVAL_INTERVAL": "0"},  # a plateau of its own, not of the schedule
    ),
    "longer": Preset(
        about="the two splits that matter most of the preset nano, over twice its rounds: does the gain last?",
        settings=_NANO,
        splits="8/0,4/4",
        equal={"writing": 0.5},
        rounds=180,
        rule="twice the horizon of the preset nano",
    ),
    "alone": Preset(
        about="nano on easy tasks without peers: does a node end with more than it knew?",
        asked=Asked("Does a node alone learn more than the form?", outcome="held_out"),
        settings={**_EASY, "LEARNING_RATE": "1e-4", "EVAL_INTERVAL": "960"},
        nodes=1,
        splits="8/0",
        best="8/0",
        rounds=3840,
        rule="the longest of the pilots, and the better of two learning rates on two pilot seeds",
        seeds=5,
    ),
    "knowledge": Preset(
        about="nano on easy tasks: what does a node know at the end that reads everything of its seven peers?",
        asked=Asked("Does a node know more that reads everything?", outcome="held_out"),
        settings=_EASY,
        nodes_alone=FEW_NODES,
        splits="8/0,4/28",
        best="4/28",
        equal={"writing": 0.5, "compute": 2.17},
        rounds=300,
        rule=_KNOWLEDGE_RULE,
    ),
    "quarter": Preset(
        about="nano on easy tasks: do 4 own rollouts and 12 of three peers teach as much as 16 of one's own?",
        asked=Asked("Can reading take the place of writing?", outcome="held_out", as_good_within=0.02),
        settings=_EASY,
        nodes=4,
        splits="16/0,4/12",
        best="4/12",
        equal={"writing": 0.25},
        rounds=300,
        rule=_KNOWLEDGE_RULE,
    ),
    "sizes": Preset(
        about="nano on easy tasks: what does a node know at the end in swarms of 1 to 16 that read everything?",
        asked=Asked("Does knowledge grow with the swarm?", change="the larger swarm", outcome="held_out"),
        settings=_EASY,
        arms=tuple(_sized(nodes) for nodes in (1, 2, 4, 8, 16)),
        best=_sized(8).name,
        rounds=300,
        rule=_KNOWLEDGE_RULE,
    ),
    "smollm2": Preset(
        about="SmolLM2-135M-Instruct on a CPU: do two nodes that share learn as much as one that writes twice as much?",
        asked=Asked(outcome="held_out"),
        settings=_SMOLLM2,
        nodes=2,
        nodes_alone=1,
        splits="8/0,4/4",
        equal={"compute": 1.05},  # as the first seed showed
        rounds=150,
        rule="150 rounds, fixed before a reported seed was run; tasks, prompt and length of completions as `probe` recommends",
        seeds=1,
    ),
    "gpt2": Preset(
        about="GPT-2 on a GPU, as in the reference documents: 5 nodes, of which the coordinator is not needed in one process",
        settings={"MODEL_NAME": "openai-community/gpt2", "DTYPE": "float32", "NUM_GENERATIONS": "4", "EVAL_INTERVAL": "100"},
        nodes=4,
        splits="4/0,3/1,2/2,1/3",
        best="2/2",
    ),
    "qwen": Preset(
        about="the paper's Qwen2.5-0.5B on a GPU, adapters trained",
        settings={
            "MODEL_NAME": "Gensyn/Qwen2.5-0.5B-Instruct",
            "DTYPE": "bfloat16",
            "LORA_RANK": "32",
            "LEARNING_RATE": "1e-4",
            "NUM_GENERATIONS": "8",
            "EVAL_INTERVAL": "100",
        },
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"unknown --preset {name!r}: use {', '.join(PRESETS)}")
    return PRESETS[name]


def quick(preset: Preset) -> Preset:
    """A look that takes minutes: it shows that everything works, and proves nothing."""
    rounds = min(30, preset.rounds)
    return replace(
        preset,
        nodes=min(4, preset.nodes),
        rounds=rounds,
        splits=f"{parse_splits(preset.splits)[0]},{preset.best}",
        seeds=2,
        seeds_from=QUICK_SEEDS,
        equal={},
        rule="a quick look: the rounds are as few as show something, by no rule",
        settings={**preset.settings, **preset.quick_settings, "EVAL_INTERVAL": str(rounds)},
    )


ABLATIONS = ("correction", "choice", "window", "adaptive", "models", "size")


def arms_of(preset: Preset, ablations: Sequence[str] = ()) -> list[Arm]:
    """The arms of the table, the one without sharing first, then those of the ablations."""
    alone = min(preset.nodes, preset.nodes_alone)
    arms = list(preset.arms) or [
        Arm(str(split), split, preset.nodes if split.external else alone) for split in parse_splits(preset.splits)
    ]
    best = next((arm for arm in arms if arm.name == preset.best), arms[-1])
    changed = _ablations(best, preset.settings["MODEL_NAME"])
    for name in ablations:
        if name not in changed:
            raise ConfigError(f"unknown --ablations {name!r}: use all, or some of {', '.join(ABLATIONS)}")
        arms += [replace(arm, ablation=name) for arm in changed[name]]
    return arms + [_as_dear(arms[0], cost, round(share * preset.rounds)) for cost, share in preset.equal.items()]


def _as_dear(baseline: Arm, cost: str, rounds: int) -> Arm:
    """The baseline over as many rounds as cost what the best arm costs, its learning rate falling to their end.

    Nodes that share nothing are alone, so a few of them show what more would.
    """
    name = f"{baseline.name} for {counted(rounds, 'round')}"
    return replace(baseline, name=name, nodes=min(FEW_NODES, baseline.nodes), rounds=rounds, equal=cost)


def _ablations(best: Arm, model: str) -> dict[str, list[Arm]]:
    """Arms that change the best split in one way each, by the question that they answer."""

    def changed(what: str, **settings: str) -> Arm:
        return replace(best, name=f"{best.name} {what}", settings={**best.settings, **settings})

    alone = Split(best.split.total, 0)
    # Every second node has the same model with coarse weights: a weaker peer of the same family, without a download.
    mixed = replace(best, name=f"{best.name} mixed models", models=(model, QUANTISED + model))
    sizes = [(nodes, counted(nodes, "node")) for nodes in (1, 2, 4, 16) if nodes != best.nodes]
    return {
        "correction": [changed(rule, EXTERNAL_CORRECTION=rule) for rule in ("topr", "none")],
        "choice": [changed(rule, ROLLOUT_CHOICE=rule) for rule in ("uniform", "matched")],
        "window": [changed(f"window {rounds}", ROLLOUT_WINDOW_ROUNDS=rounds) for rounds in ("1", "10")],
        "adaptive": [replace(best, name="adaptive", adaptive=True)],
        "models": [mixed, replace(mixed, name=f"{alone} mixed models", split=alone)],
        "size": [replace(changed(name), nodes=nodes) for nodes, name in sizes],
    }


def cells_of(preset: Preset, arms: Sequence[Arm], settings: Mapping[str, str]) -> list[Cell]:
    """Every cell, the two arms that matter most first: a run that is stopped early has whole pairs of them."""

    def main(arm: Arm) -> bool:
        return bool(arm.equal) or arm.adaptive or (arm.in_table and arm.name in (arms[0].name, preset.best))

    few, made_by = min(FEW_SEEDS, preset.seeds), versions()
    cells = [
        Cell(arm, seed, arm.rounds or preset.rounds, dict(settings), made_by)
        for arm in arms
        for seed in preset.seeds_from[: preset.seeds if main(arm) else few]
    ]
    return sorted(cells, key=lambda cell: (bool(cell.arm.ablation), bool(cell.arm.equal), not main(cell.arm), cell.seed))


def pilot_cells(preset: Preset, settings: Mapping[str, str]) -> list[Cell]:
    """All splits on the pilot seeds: the baseline to see its plateau, the others to name the best."""
    arms, made_by = arms_of(replace(preset, equal={})), versions()
    steady = {**settings, **preset.pilot_settings}
    return [Cell(arm, seed, preset.pilot_rounds, steady, made_by) for seed in PILOT_SEEDS for arm in arms]


def horizon(curves: Iterable[Sequence[float]]) -> int:
    """Apply HORIZON_RULE to the mean own reward of the baseline, one curve a pilot seed."""
    mean = [fmean(values) for values in zip(*curves, strict=True)]
    plateau = fmean(mean[len(mean) * 3 // 4 :])
    reached = next(place for place, value in enumerate(smooth(mean, SMOOTHED_ROUNDS)) if value >= PLATEAU * plateau)
    return min(len(mean), math.ceil((reached + 1) / 10) * 10)


def versions() -> dict[str, str]:
    """Versions that a result depends on. Numbers can differ in the last digit between versions of torch."""
    libraries = {name: version(name) for name in ("torch", "transformers")}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"learner": LEARNER, "python": python, **libraries, "tasks": tasks_version()}
