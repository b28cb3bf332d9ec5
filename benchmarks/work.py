"""What is benchmarked: workloads, the operations they need, and how time and memory are read.

A round is compared at equal work: the same model file, prompts of the same length, completions of exactly the given length (nobody
may end early), rewards by which every group is informative, and no rollouts of peers.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MATRIX = 2048


@dataclass(frozen=True)
class Work:
    """I questions of `prompt_tokens`, G completions each of `new_tokens`."""

    model: str
    questions: int
    group_size: int
    prompt_tokens: int
    new_tokens: int

    @property
    def tokens(self) -> int:
        return self.questions * self.group_size * self.new_tokens


def prompts(work: Work, tokenizer: Any, count: int) -> list[str]:
    """Texts of at most `prompt_tokens` tokens, different ones; the model's chat template is not around them."""
    generator, made = torch.Generator().manual_seed(0), []
    for _ in range(count):
        ids = torch.randint(30, len(tokenizer) - 10, (work.prompt_tokens,), generator=generator).tolist()
        text = tokenizer.decode(ids, skip_special_tokens=True)
        while len(tokenizer.encode(text)) > work.prompt_tokens:
            text = text[:-1]
        made.append(text)
    return made


def rewards(rows: int, step: int) -> list[float]:
    """Different in every group, whatever was written."""
    return torch.rand(rows, generator=torch.Generator().manual_seed(step)).tolist()


@dataclass(frozen=True)
class Operations:
    """Floating-point operations that the packed form needs, no more: each prompt once, no padding, no token computed twice."""

    generate: float
    update: float


def operations(work: Work, model: Any) -> Operations:
    text = model.config.get_text_config()
    layers = sum(p.numel() for p in model.base_model.layers.parameters() if p.dim() == 2)
    head = text.vocab_size * text.hidden_size
    heads = (
        text.num_hidden_layers
        * text.num_attention_heads
        * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    )
    rows = work.questions * work.group_size
    computed = work.questions * work.prompt_tokens + rows * (work.new_tokens - 1)  # the last token of a completion predicts nothing
    predicting = work.questions + rows * (work.new_tokens - 1)
    own = sum(work.prompt_tokens + token for token in range(1, work.new_tokens))
    seen = work.questions * work.prompt_tokens**2 / 2 + rows * own  # pairs of tokens, one attending to the other
    forward = 2 * layers * computed + 2 * head * predicting + 4 * heads * seen
    return Operations(forward, 3 * forward)


def matrix_rate(repeats: int = 4) -> float:
    """Floating-point operations per second of an fp32 matrix product, the best of a few."""
    left, right, best = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX), 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        left @ right
        best = max(best, 2 * MATRIX**3 / (time.perf_counter() - began))
    return best


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel tells no peak of memory (VmHWM in /proc/self/status)")
