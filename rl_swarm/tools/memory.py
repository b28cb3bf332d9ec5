"""Estimate the memory of workers before they start, and say whether so many fit on a device.

The estimate is for planning and lies within a factor of two (docs/operating.md says how it was compared). It follows the limits of
`policy.py`, `trainer.py` and `forward.py` on the tokens, activations and logits that exist at once. Only the model's config is
read, and torch is imported where it is used.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from rl_swarm.config import Config, load
from rl_swarm.errors import ModelError
from rl_swarm.learning.engine.libraries import require_transformers
from rl_swarm.processes.children import python
from rl_swarm.runs.validate import Finding
from rl_swarm.show.tables import make_table
from rl_swarm.store import open_store
from rl_swarm.swarm import experiment as experiments
from rl_swarm.swarm.layout import Layout
from rl_swarm.tasks import HELD_OUT, parse_tasks, tasks_of
from rl_swarm.text import counted

APART_SECONDS = 120.0
PROMPT_TOKENS = 512  # the longest prompts of the paper's tasks (arc_1d: up to 860 characters) with the instruction around them
EASY_PROMPT_TOKENS = 128  # and of the easy ones, up to 105 characters
FRAMEWORK_BYTES = {"cuda": 600_000_000, "mps": 300_000_000, "cpu": 480_000_000}  # CUDA's context and kernels; Python, torch, helper
ALLOCATOR_SHARE = 0.15  # of all but the weights: lost in holes, which a growing cache leaves in CUDA's memory
CACHE_COPIES = 1.75  # when rows that ended leave the batch, the others, at most three quarters, are copied
LOGIT_BYTES = 12  # for each logit trained on: itself in fp32, log-probabilities, their products
SAMPLING_BYTES = 58  # for each logit sampled from: logits in fp32, tempered, probabilities, sorted where TOP_P asks for it
ADAPTED = 1.5  # times the activations: adapters keep their inputs in fp32
NORMED = 1.3  # times the activations: queries and keys that are normalized (Qwen3) are kept before and after


@dataclass(frozen=True)
class Device:
    """Where workers compute; `assumed` if it was only described and need not exist."""

    kind: str
    name: str
    total_bytes: int
    free_bytes: int
    assumed: bool = False


def this_device(cpu_only: bool = False) -> Device:
    """Return the device that a worker would choose here. On CUDA this opens a context, which stays as long as the process."""
    import torch

    from rl_swarm.learning.models import choose_device

    kind = choose_device(cpu_only)
    if kind == "cuda":
        free, total = torch.cuda.mem_get_info()
        return Device(kind, torch.cuda.get_device_name(), total, free)
    if kind == "mps":
        total = torch.mps.recommended_max_memory()
        return Device(kind, f"the GPU of this {platform.machine()} Mac", total, total)
    return Device(kind, f"{counted(os.cpu_count() or 1, 'core')}, {platform.machine()}", *host_memory())


def assumed_gpu(gigabytes: float) -> Device:
    """Describe a CUDA device with so much memory, all of it free, that computes in bfloat16."""
    size = int(gigabytes * 1e9)
    return Device("cuda", f"a GPU of {gigabytes:g} GB", size, size, assumed=True)


def host_memory() -> tuple[int, int]:
    """Return total and available memory within a container's limit; both are the total where the system does not say."""
    total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        free = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except (OSError, StopIteration):  # no Linux, or no container
        return total, free
    return (min(total, int(limit)), min(free, int(limit) - int(used))) if limit.isdigit() else (total, free)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, as a worker would load it, that decide about memory.

    `cached` are the keys and values of a token in one layer, `sharing` the query heads that share a key, and `token_bytes` the
    activations that a token leaves in all layers for the backward pass.
    """

    name: str
    dtype: str
    value_bytes: int
    parameters: int
    weight_bytes: int
    trainable_bytes: int
    layers: int
    hidden: int
    cached: int
    sharing: int
    token_bytes: int
    vocabulary: int
    context_tokens: int | None
    lora: bool
    normed: bool

    @property
    def checkpoint_bytes(self) -> int:
        """Trained weights and both of Adam's averages."""
        return 3 * self.trainable_bytes


def shape_of(config: Config, device: Device) -> Shape:
    """Read a model's shape from its config; refuse what `models.load` would refuse, with the same ModelError.

    Parameters are counted on torch's meta device, which holds no weights.
    """
    require_transformers()
    import torch
    from transformers import AutoModelForCausalLM

    from rl_swarm.learning.engine.architecture import activation_bytes
    from rl_swarm.learning.models import choose_dtype, choose_model
    from rl_swarm.learning.models.loading import add_lora, read_config, trained_dtype

    name = config.model
    if name == "auto":
        name = choose_model(0.0 if device.kind == "cpu" else device.total_bytes / 1e9, config.seed)
    found = read_config(name, config.hub_token)
    wanted = trained_dtype(config.dtype, config.lora_rank)
    assumed = getattr(torch, "bfloat16" if wanted == "auto" else wanted)
    dtype = assumed if device.assumed else choose_dtype(device.kind, wanted)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(found, dtype=dtype, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the config of {name} cannot be read ({first}): MODEL_NAME wants a causal language model") from error
    token_bytes = activation_bytes(model)
    model = add_lora(model, config.lora_rank) if config.lora_rank else model
    parameters, text = dict(model.named_parameters()), found.get_text_config()
    heads = text.num_attention_heads
    keys = getattr(text, "num_key_value_heads", None) or heads
    return Shape(
        name=name,
        dtype=str(dtype).removeprefix("torch."),
        value_bytes=dtype.itemsize,
        parameters=sum(parameter.numel() for parameter in parameters.values()),
        weight_bytes=sum(parameter.nbytes for parameter in parameters.values()),
        trainable_bytes=sum(parameter.nbytes for parameter in parameters.values() if parameter.requires_grad),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        cached=2 * keys * (getattr(text, "head_dim", None) or text.hidden_size // heads),
        sharing=heads // keys,
        token_bytes=token_bytes,
        vocabulary=text.vocab_size,
        context_tokens=getattr(text, "max_position_embeddings", None),
        lora=bool(config.lora_rank),
        normed=any(".q_norm." in parameter for parameter in parameters),
    )


Parts = dict[str, dict[str, int]]  # bytes by the phase of a round in which they exist, and by what they are


def estimate(shape: Shape, config: Config, prompt_tokens: int, kind: str, *, smallest: bool = False) -> Parts:
    """Estimate the parts of one worker. `smallest`: it answers one question and trains on one completion at a time."""
    from rl_swarm.learning.engine.forward import LOGIT_VALUES
    from rl_swarm.learning.policy import BATCH_TOKENS
    from rl_swarm.learning.trainer import ACTIVATION_BYTES

    group, new_tokens, layers = config.group_size, config.max_new_tokens, shape.layers
    # A batch of own or of held-out questions. A prompt is read and kept once for all its completions.
    held_out = HELD_OUT if config.eval_interval else 0
    cache = computing = 0
    for count, completions in [(1, group)] if smallest else [(config.own_count, group), (held_out, 1)]:
        questions = min(count, max(1, BATCH_TOKENS // (prompt_tokens + completions * new_tokens)))
        tokens = int(questions * (prompt_tokens + CACHE_COPIES * completions * new_tokens))
        reading = questions * prompt_tokens * shape.token_bytes // (2 * layers)  # a layer holds half of what it would keep
        cache = max(cache, tokens * layers * shape.cached * shape.value_bytes)
        computing = max(computing, reading, questions * completions * shape.vocabulary * SAMPLING_BYTES)

    # The largest part of a training batch: at most half of its tokens are prompts, and at least one completion is in it.
    budget = 1 if smallest else ACTIVATION_BYTES[kind] // shape.token_bytes
    questions = config.own_count + config.external_count
    prompts = max(1, min(questions, budget // 2 // prompt_tokens))
    rows = max(1, min(prompts * group, (budget - prompts * prompt_tokens) // new_tokens))
    kept = (prompts * prompt_tokens + rows * new_tokens) * shape.token_bytes
    kept = int(kept * (NORMED if shape.normed else 1) * (ADAPTED if shape.lora and shape.value_bytes < 4 else 1))
    # Each layer of a completion has its own copy of the keys and values that it attends to, and of the mask.
    attended = rows * (prompt_tokens + new_tokens) * layers * (shape.cached + new_tokens * shape.sharing) * shape.value_bytes
    logits = min(rows * new_tokens, max(1, LOGIT_VALUES // shape.vocabulary)) * shape.vocabulary
    # Besides the gradients of what is trained: of one layer's activations, or of the head and a chunk that is added to it; and of
    # all embeddings of the batch, which is embedded at once.
    head = 0 if shape.lora else 2 * shape.vocabulary * shape.hidden * shape.value_bytes
    embedded = 3 * questions * (prompt_tokens + group * new_tokens) * shape.hidden * shape.value_bytes

    parts = {
        "always": {"weights": shape.weight_bytes, "Adam's averages": 2 * shape.trainable_bytes},
        "answering": {"key-value cache": cache, "reading and sampling": computing},
        "training": {
            "activations": kept + attended,
            "logits": logits * LOGIT_BYTES,
            "gradients": shape.trainable_bytes + max(head, kept // layers) + embedded,
        },
    }
    if kind == "cpu":  # the file's tensors, and a copy of the optimizer's: see Trainer.restore
        parts["resuming"] = {"checkpoint being restored": shape.checkpoint_bytes + 2 * shape.trainable_bytes}
    if kind == "cuda":
        parts["always"]["allocator"] = int(ALLOCATOR_SHARE * (peak(parts)[1] - shape.weight_bytes))
    parts["always"]["framework"] = FRAMEWORK_BYTES[kind]
    return parts


def peak(parts: Parts) -> tuple[str, int]:
    """Return the phase that needs the most memory, and how much: parts of different phases do not exist at once."""
    phase = max((phase for phase in parts if phase != "always"), key=lambda phase: sum(parts[phase].values()))
    return phase, sum(parts["always"].values()) + sum(parts[phase].values())


@dataclass(frozen=True)
class Fit:
    """So many workers against a device. `least_bytes` a worker needs in the smallest batches, to which workers go by themselves."""

    model: Shape
    device: Device
    workers: int
    parts: Parts
    peak_phase: str
    peak_bytes: int
    least_bytes: int

    @property
    def finding(self) -> Finding:
        """Fail only where smaller batches do not help either; on a CPU, which may swap, warn."""
        each, least, free = self.peak_bytes, self.least_bytes, self.device.free_bytes
        need = f"{self.model.name} ({self.model.dtype}) needs about {gb(each)} a worker, {gb(self.workers * each)} in all"
        have = f"{gb(free)} are free on {self.device.name}"
        if self.workers * each <= free:
            return Finding("memory", "ok", f"{need}; {have}")
        if self.device.kind == "cpu":
            return Finding("memory", "warning", f"{need}, and only {have}: use {self._remedy(each)}")
        if self.workers * least <= free:
            slower = f"workers will use smaller batches, of {gb(least)} at least, which are slower"
            return Finding("memory", "warning", f"{need}, and only {have}: {slower}; better use {self._remedy(each)}")
        need += f", {gb(least)} a worker in the smallest batches"
        return Finding("memory", "failed", f"{need}, and only {have}: use {self._remedy(least)}")

    def _remedy(self, each: int) -> str:
        fitting = self.device.free_bytes // each
        ways = [f"--workers {fitting}"] if fitting else []
        ways += ["EVAL_INTERVAL=0"] if self.model.lora else ["EVAL_INTERVAL=0", "LORA_RANK=16"]
        return ", ".join([*ways, "a lower MAX_NEW_TOKENS"]) + " or a smaller MODEL_NAME"

    @property
    def table(self) -> Group:
        """The parts of one worker and of all workers, and the finding."""
        counts = sorted({1, self.workers})
        view = make_table("part", "when", numbers=[counted(count, "worker") for count in counts])
        for phase, parts in self.parts.items():
            for name, size in parts.items():
                view.add_row(name, phase, *(gb(count * size) for count in counts))
        view.add_section()
        view.add_row("at the peak", self.peak_phase, *(gb(count * self.peak_bytes) for count in counts))
        view.add_row("in the smallest batches", "", *(gb(count * self.least_bytes) for count in counts))
        title = f"{self.model.name}, {self.model.parameters / 1e6:.1f} M parameters in {self.model.dtype}, {self.device.name}"
        return Group(Text(title), view, Text(f"{self.finding.status}: {self.finding.detail}"))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"total_bytes": self.workers * self.peak_bytes, "finding": asdict(self.finding)}


def assess(config: Config, workers: int, device: Device | None = None, prompt_tokens: int | None = None) -> Fit:
    """Estimate `workers` workers on a device; raise ModelError if the model is missing or cannot be used with these settings."""
    device = device or this_device(config.cpu_only)
    shape = shape_of(config, device)
    longest = prompt_tokens or (EASY_PROMPT_TOKENS if tasks_of(config) == parse_tasks("easy") else PROMPT_TOKENS)
    if shape.context_tokens is not None:
        longest = max(1, min(longest, shape.context_tokens - config.max_new_tokens))
    usual, least = (estimate(shape, config, longest, device.kind, smallest=smallest) for smallest in (False, True))
    return Fit(shape, device, workers, usual, *peak(usual), peak(least)[1])


def refuse_if_too_large(environment: Mapping[str, str], config: Config, workers: int) -> list[str]:
    """Return warnings for a launcher; raise ModelError if so many workers cannot fit. The embedded model always does.

    Another process runs `rl-swarm memory`: the launcher lives long, and would keep torch and a CUDA context.
    """
    published = experiments.read(open_store(config.store_url), Layout(config.experiment_name), config.founder)
    agreed = {name: value for name, value in published.settings.items() if name != "TASKS"} if published else {}
    settings = {**agreed, **environment}
    model = load(settings).model  # the one that the nodes will take
    if model == "nano":
        return []
    command = python("from rl_swarm.cli import main; main()", "memory", f"--workers={workers}", "--json", "--", model)
    try:
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=APART_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [f"memory was not estimated within {APART_SECONDS:.0f} s: the device may be busy"]
    if not done.stdout:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        ours = reason.startswith("rl-swarm: ")
        raise ModelError(reason[10:] if ours else f"memory cannot be estimated ({reason}): 'rl-swarm doctor' says what is broken")
    found = Finding(**json.loads(done.stdout)["finding"])
    if found.status == "failed":
        raise ModelError(found.detail)
    return [found.detail] if found.status == "warning" else []


def gb(size: float) -> str:
    """Show a size in the decimal gigabytes that cards are sold by."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
