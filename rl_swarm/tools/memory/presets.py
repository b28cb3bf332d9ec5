"""Swarms on one GPU by name: how many workers, and settings that stand where the environment and the flags are silent.

`gpt2-5` and `gpt2-8` are the reference documents' 5 and 8 nodes with GPT-2 on one A100. Weights are float32 where all of them are
trained: steps of 1e-5 vanish in bfloat16, whose neighbours of 0.02 are 1e-4 apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rl_swarm.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    workers: int
    about: str
    settings: Mapping[str, str]

    def under(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with this preset beneath it: what somebody said wins."""
        return {**self.settings, **environment}


_GPT2 = {"MODEL_NAME": "openai-community/gpt2", "DTYPE": "float32", "MAX_ROUNDS": "2000"}
_QWEN = {"MODEL_NAME": "Gensyn/Qwen2.5-0.5B-Instruct", "NUM_GENERATIONS": "8", "MAX_ROUNDS": "2000"}
_HALF = {"NUM_TRAIN_SAMPLES": "4", "NUM_TRANSPLANT_TREES": "4"}

PRESETS: dict[str, Preset] = {
    "gpt2-5": Preset(
        4,
        "a coordinator and 4 workers with GPT-2, 2 own and 2 external rollouts of 4 completions",
        {**_GPT2, "NUM_TRAIN_SAMPLES": "2", "NUM_TRANSPLANT_TREES": "2", "NUM_GENERATIONS": "4"},
    ),
    "gpt2-8": Preset(  # without evaluation, whose batches would be the largest
        8,
        "8 workers with GPT-2, 4 own and 4 external rollouts of 8 completions, no held-out evaluation",
        {**_GPT2, **_HALF, "NUM_GENERATIONS": "8", "EVAL_INTERVAL": "0"},
    ),
    "qwen-4": Preset(
        4,
        "4 workers with Qwen2.5-0.5B, all weights trained, 4 own and 4 external rollouts of 8 completions",
        {**_QWEN, **_HALF, "DTYPE": "float32"},
    ),
    "qwen-8": Preset(
        8,
        "the paper's 8 workers with Qwen2.5-0.5B, 4 own and 4 external rollouts of 8 completions, adapters trained",
        {**_QWEN, **_HALF, "DTYPE": "bfloat16", "LORA_RANK": "32", "LEARNING_RATE": "1e-4"},
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"--preset is not known, got {name!r}: use {', '.join(PRESETS)}")
    return PRESETS[name]
