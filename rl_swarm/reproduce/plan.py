"""What is run to answer whether sharing helps: presets, arms, seeds and cells. Pure: nothing here runs, reads or writes.

An *arm* is one thing that is compared: a split of I + J, or an ablation of the best one. A *cell* is one arm with one seed, that is
one whole swarm. Arms are compared on the same seeds. What could be tuned (horizon, learning rate, best split) is fixed on pilot
seeds, which are never reported; reported seeds are run afterwards and once.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

from rl_swarm import __version__
from rl_swarm.errors import ConfigError
from rl_swarm.reproduce.split import Split, parse_splits
from rl_swarm.tasks import tasks_version

REPORTED_SEEDS = range(9, 101)  # smaller ones served while this was written
PILOT_SEEDS = range(101, 104)
QUICK_SEEDS = range(201, 301)  # a quick look must not show what is to be reported
FEW_SEEDS = 3  # for every arm but the baseline and the best split
SMOOTHED_ROUNDS = 10
PLATEAU = 0.95
HORIZON_RULE = (
    f"the horizon is where 8/0 reaches its plateau: the first round at which its mean own reward, smoothed over {SMOOTHED_ROUNDS} "
    f"rounds and averaged over the pilot seeds {PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}, is within "
    f"{round(100 * (1 - PLATEAU))} % of its mean in the last quarter of the pilot run, rounded up to a multiple of ten"
)
DOCUMENTS_RULE = "the horizon is the 2000 rounds of the paper and the reference documents"
# Given by the plan; whoever sets one of them by hand is told what to use instead.
PLANNED = {
    "seed": "--seeds",
    "max_rounds": "--rounds",
    "own_count": "--splits",
    "external_count": "--splits",
    "store": "--output",
    "experiment": "--output",
    "node_id": "--nodes",
    "role": "--nodes",
    "home": "--output",
}
QUANTISED = "quantised:"  # before a model's name: that model with coarse weights, see cell.py


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


@dataclass(frozen=True)
class Cell:
    """One swarm to be run: everything that its result depends on, versions included."""

    arm: Arm
    seed: int
    rounds: int
    settings: Mapping[str, str]
    versions: Mapping[str, str]

    @property
    def id(self) -> str:
        """A file name that changes with anything that could change the result."""
        text = json.dumps(asdict(self), sort_keys=True)
        readable = "".join(letter if letter.isalnum() else "-" for letter in self.arm.name)
        return f"{readable}_seed{self.seed}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def environment(self, place: int) -> dict[str, str]:
        """What the node at this place would be started with."""
        models = self.arm.models
        return {
            **self.settings,
            **self.arm.settings,
            **({"MODEL_NAME": models[place % len(models)]} if models else {}),
            "NUM_TRAIN_SAMPLES": str(self.arm.split.own),
            "NUM_TRANSPLANT_TREES": str(self.arm.split.external),
            "MAX_ROUNDS": str(self.rounds),
            "SEED": str(self.seed),
        }

    @property
    def effort(self) -> float:
        """Relative work, for the time left: own rollouts are written and trained on, external ones only trained on."""
        return self.rounds * self.arm.nodes * (self.arm.split.own + 0.5 * self.arm.split.external)


@dataclass(frozen=True)
class Preset:
    """`best` is the sharing split that the pilot seeds favoured: it is named before a reported seed is run."""

    about: str
    nodes: int
    rounds: int
    splits: str
    best: str
    settings: Mapping[str, str]
    rule: str  # how the horizon was fixed, as the report says it
    seeds: int = 8
    seeds_from: range = REPORTED_SEEDS
    pilot_rounds: int = 0
    quick_settings: Mapping[str, str] = field(default_factory=dict)


# One step beyond `easy` in each of its tasks: nano is paid for one completion in two hundred, so that a node alone finds something
# to learn from in every second round only. On `easy` itself a node alone is never stuck, and sharing brings little.
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
    "EVAL_INTERVAL": "20",
}

PRESETS: dict[str, Preset] = {
    "nano": Preset(
        about="the embedded model on a CPU",
        nodes=8,
        rounds=80,  # what `reproduce --pilot` printed
        splits="8/0,6/2,4/4,2/6",
        best="4/4",
        settings=_NANO,
        rule=HORIZON_RULE,
        pilot_rounds=120,
        quick_settings={"TASKS": "easy"},  # on which something is learnt in so few rounds
    ),
    "gpt2": Preset(
        about="GPT-2 on a GPU, as in the reference documents: 5 nodes, of which the coordinator is not needed in one process",
        nodes=4,
        rounds=2000,
        splits="4/0,3/1,2/2,1/3",
        best="2/2",
        settings={"MODEL_NAME": "openai-community/gpt2", "DTYPE": "float32", "NUM_GENERATIONS": "4", "EVAL_INTERVAL": "100"},
        rule=DOCUMENTS_RULE,
        pilot_rounds=2000,
    ),
    "qwen": Preset(
        about="the paper's Qwen2.5-0.5B on a GPU, adapters trained",
        nodes=8,
        rounds=2000,
        splits="8/0,6/2,4/4,2/6",
        best="4/4",
        settings={
            "MODEL_NAME": "Gensyn/Qwen2.5-0.5B-Instruct",
            "DTYPE": "bfloat16",
            "LORA_RANK": "32",
            "LEARNING_RATE": "1e-4",
            "NUM_GENERATIONS": "8",
            "EVAL_INTERVAL": "100",
        },
        rule=DOCUMENTS_RULE,
        pilot_rounds=2000,
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"--preset is not known, got {name!r}: use {', '.join(PRESETS)}")
    return PRESETS[name]


def quick(preset: Preset) -> Preset:
    """A look that takes minutes: it shows that everything works, and proves nothing."""
    nodes, rounds = min(4, preset.nodes), min(30, preset.rounds)
    splits = parse_splits(preset.splits)
    few = ",".join(str(split) for split in splits if split.external == 0 or str(split) == preset.best)
    return replace(
        preset,
        nodes=nodes,
        rounds=rounds,
        splits=few,
        seeds=2,
        seeds_from=QUICK_SEEDS,
        rule="a quick look: the rounds are as few as show something, by no rule",
        settings={**preset.settings, **preset.quick_settings, "EVAL_INTERVAL": str(rounds)},
    )


def arms_of(preset: Preset, ablations: Sequence[str] = ()) -> list[Arm]:
    """The arms of the table, the one without sharing first, then those of the ablations."""
    splits = parse_splits(preset.splits)
    arms = [Arm(str(split), split, preset.nodes) for split in splits]
    if not ablations:
        return arms
    best = next((arm for arm in arms if arm.name == preset.best), arms[-1])
    for name in ablations:
        if name not in ABLATIONS:
            raise ConfigError(f"--ablations is not known, got {name!r}: use all, or some of {', '.join(ABLATIONS)}")
        arms += [replace(arm, ablation=name) for arm in ABLATIONS[name](best, preset)]
    return arms


def _correction(best: Arm, preset: Preset) -> list[Arm]:
    return [_changed(best, rule, EXTERNAL_CORRECTION=rule) for rule in ("topr", "none")]


def _choice(best: Arm, preset: Preset) -> list[Arm]:
    return [_changed(best, rule, ROLLOUT_CHOICE=rule) for rule in ("uniform", "matched")]


def _window(best: Arm, preset: Preset) -> list[Arm]:
    return [_changed(best, f"window {rounds}", ROLLOUT_WINDOW_ROUNDS=str(rounds)) for rounds in (1, 10)]


def _adaptive(best: Arm, preset: Preset) -> list[Arm]:
    return [replace(best, name="adaptive", adaptive=True)]


def _models(best: Arm, preset: Preset) -> list[Arm]:
    """Every second node has the same model with coarse weights: a weaker peer of the same family, with no download."""
    model = preset.settings["MODEL_NAME"]
    return [
        replace(best, name=f"{best.name} mixed models", models=(model, QUANTISED + model)),
        replace(
            best, name=f"{best.split.total}/0 mixed models", models=(model, QUANTISED + model), split=Split(best.split.total, 0)
        ),
    ]


def _size(best: Arm, preset: Preset) -> list[Arm]:
    return [
        replace(best, name=f"{best.name} {nodes} node{'s'[: nodes > 1]}", nodes=nodes)
        for nodes in (1, 2, 4, 16)
        if nodes != best.nodes
    ]


def _changed(best: Arm, what: str, **settings: str) -> Arm:
    return replace(best, name=f"{best.name} {what}", settings={**best.settings, **settings})


ABLATIONS = {
    "correction": _correction,
    "choice": _choice,
    "window": _window,
    "adaptive": _adaptive,
    "models": _models,
    "size": _size,
}


def cells_of(preset: Preset, arms: Sequence[Arm], settings: Mapping[str, str]) -> list[Cell]:
    """Every cell, pairs first: a run that is stopped early has whole pairs of the two arms that matter most."""
    cells = [
        Cell(arm, seed, preset.rounds, dict(settings), versions())
        for arm in arms
        for seed in preset.seeds_from[: seeds_for(arm, preset)]
    ]
    main = {arm.name for arm in arms if _paired(arm, preset)}
    return sorted(cells, key=lambda cell: (bool(cell.arm.ablation), cell.arm.name not in main, cell.seed))


def seeds_for(arm: Arm, preset: Preset) -> int:
    return preset.seeds if _paired(arm, preset) else min(FEW_SEEDS, preset.seeds)


def _paired(arm: Arm, preset: Preset) -> bool:
    return not arm.ablation and (arm.split.external == 0 or arm.name == preset.best)


def pilot_cells(preset: Preset, settings: Mapping[str, str]) -> list[Cell]:
    """The baseline on the pilot seeds, long enough to see its plateau; and the sharing splits, to name the best."""
    arms = arms_of(preset)
    return [Cell(arm, seed, preset.pilot_rounds, dict(settings), versions()) for seed in PILOT_SEEDS for arm in arms]


def horizon(curves: Iterable[Sequence[float]]) -> int:
    """HORIZON_RULE, applied to the mean own reward of the baseline, round by round, one curve a pilot seed."""
    mean = [fmean(values) for values in zip(*curves, strict=True)]
    smooth = [fmean(mean[max(0, place + 1 - SMOOTHED_ROUNDS) : place + 1]) for place in range(len(mean))]
    plateau = fmean(mean[len(mean) * 3 // 4 :])
    reached = next(place for place, value in enumerate(smooth) if value >= PLATEAU * plateau)
    return min(len(mean), math.ceil((reached + 1) / 10) * 10)


def versions() -> dict[str, str]:
    """What made the result, besides the settings. Numbers can differ in the last digit between versions of torch."""
    import platform
    from importlib.metadata import version

    return {
        "rl_swarm": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "tasks": tasks_version(),
    }
