"""The memory of one worker, part by part: arithmetic on a model's shape and the settings, as batches are really cut.

`policy.py` bounds what is answered at once, `trainer.py` what is trained on at once and `forward.py` the logits that exist at once;
their bounds are taken from there. Where a batch does not fit, workers cut it further by themselves: `smallest` is where that ends.
"""

from dataclasses import dataclass, replace

from rl_swarm.config import Config
from rl_swarm.memory.shape import Shape
from rl_swarm.tasks import HELD_OUT_PER_TASK, parse_tasks

PROMPT_TOKENS = 512  # the longest prompts of the paper's tasks (arc_1d: up to 860 characters) with the instruction around them
EASY_PROMPT_TOKENS = 128  # and of the easy ones, up to 105 characters
FRAMEWORK_BYTES = {"cuda": 600_000_000, "mps": 300_000_000, "cpu": 400_000_000}  # CUDA's context and kernels; Python, torch, tasks
ALLOCATOR_SHARE = (
    0.15  # of all but the weights: what torch's CUDA allocator holds and cannot use, since a growing cache leaves holes
)
LOGIT_COPIES = (
    5  # fp32 values alive for each logit while a chunk is trained on: logits, log-probabilities, their gradients, entropy
)
SAMPLING_BYTES = 24  # for each logit of a row that is sampled: logits, log-probabilities, probabilities, a sum in double precision
SORTING_BYTES = 40  # more of them where TOP_P sorts


@dataclass(frozen=True)
class Workload:
    """What a worker does in a round; `held_out` are the questions of an evaluation, 0 if there is none."""

    own_count: int
    external_count: int
    group_size: int
    new_tokens: int
    prompt_tokens: int
    held_out: int
    sorts: bool

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens


@dataclass(frozen=True)
class Part:
    """One use of memory and the phases of a round in which it exists; no phase means always."""

    name: str
    phases: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Estimate:
    parts: tuple[Part, ...]

    def during(self, phase: str) -> int:
        return sum(part.bytes for part in self.parts if not part.phases or phase in part.phases)

    @property
    def peak_phase(self) -> str:
        return max(dict.fromkeys(phase for part in self.parts for phase in part.phases), key=self.during)

    @property
    def peak_bytes(self) -> int:
        return self.during(self.peak_phase)


def workload_of(config: Config, shape: Shape, prompt_tokens: int | None = None) -> Workload:
    """The settings as rows and tokens; a prompt is never longer than the model's context leaves room for."""
    tasks = parse_tasks(config.tasks)
    prompt_tokens = prompt_tokens or (EASY_PROMPT_TOKENS if tasks == parse_tasks("easy") else PROMPT_TOKENS)
    room = prompt_tokens if shape.context_tokens is None else shape.context_tokens - config.max_new_tokens
    return Workload(
        own_count=config.own_count,
        external_count=config.external_count,
        group_size=config.group_size,
        new_tokens=config.max_new_tokens,
        prompt_tokens=max(1, min(prompt_tokens, room)),
        held_out=HELD_OUT_PER_TASK * len(tasks) if config.eval_interval else 0,
        sorts=config.top_p < 1,
    )


def estimate(shape: Shape, work: Workload, kind: str, *, smallest: bool = False) -> Estimate:
    """The parts of one worker. `smallest`: one question answered at a time, one completion trained on at a time."""
    if smallest:
        work = replace(work, own_count=1, external_count=0, held_out=0)
    parts = [
        Part("weights", (), shape.weight_bytes),
        Part("Adam's averages", (), 2 * shape.trainable_bytes),
        *_answering(shape, work),
        *_training(shape, work, smallest),
        Part("gradients", ("training", "stepping"), shape.trainable_bytes),
    ]
    if kind == "cpu":  # the file's tensors, and a copy of the optimizer's: see Trainer.restore
        parts.append(Part("checkpoint being restored", ("resuming",), shape.checkpoint_bytes + 2 * shape.trainable_bytes))
    else:  # Adam steps over all tensors at once there
        parts.append(Part("Adam's step", ("stepping",), shape.trainable_bytes))
    if kind == "cuda":
        spare = ALLOCATOR_SHARE * (Estimate(tuple(parts)).peak_bytes - shape.weight_bytes)
        parts.append(Part("allocator", (), int(spare)))
    return Estimate((*parts, Part("framework", (), FRAMEWORK_BYTES[kind])))


def _answering(shape: Shape, work: Workload) -> list[Part]:
    """A batch of questions, or of held-out ones, as `Policy` cuts it; a prompt is read once for all its completions."""
    from rl_swarm.policy import BATCH_TOKENS

    most_rows = max(1, BATCH_TOKENS // work.row_tokens)
    questions = min(work.own_count, max(1, most_rows // work.group_size))
    held_out = min(work.held_out, most_rows)
    rows = max(questions * work.group_size, held_out)
    layer = rows * work.row_tokens * shape.cached * shape.value_bytes
    reading = max(questions, held_out) * work.prompt_tokens * (4 * shape.hidden + 3 * shape.intermediate) * shape.value_bytes
    sampling = rows * shape.vocabulary * (SAMPLING_BYTES + (SORTING_BYTES if work.sorts else 0))
    return [
        Part("key-value cache", ("answering",), layer * (shape.layers + 1)),  # one layer is copied as it grows
        Part("reading and sampling", ("answering",), max(reading, sampling)),
    ]


def _training(shape: Shape, work: Workload, smallest: bool) -> list[Part]:
    """One micro-batch as `trainer.micro_batches` cuts it, with logits a chunk at a time as `forward.PaddedReader` has them."""
    from rl_swarm.forward import LOGIT_VALUES
    from rl_swarm.trainer import TrainerSettings

    batch = (work.own_count + work.external_count) * work.group_size * work.row_tokens
    tokens = work.row_tokens if smallest else min(batch, max(TrainerSettings.micro_batch_tokens, work.row_tokens))
    # Values that one layer keeps for the backward pass, as counted for Llama, Qwen2, Qwen3 and GPT-2: within 20 % of each.
    kept = (8 * shape.hidden + 4 * shape.attention + 5 * shape.intermediate) * shape.value_bytes
    if shape.lora and shape.value_bytes < 4:  # adapters compute in fp32 and keep their inputs so
        kept += 4 * (2 * shape.hidden + shape.attention + shape.intermediate)
    predicted = tokens * work.new_tokens // work.row_tokens
    chunk = max(1, min(predicted, LOGIT_VALUES // shape.vocabulary))
    return [
        Part("activations", ("training",), tokens * shape.layers * kept),
        Part("logits", ("training",), LOGIT_COPIES * 4 * chunk * shape.vocabulary),
    ]
