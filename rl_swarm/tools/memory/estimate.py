"""The memory of one worker, part by part: arithmetic on a model's shape and the settings, as batches are really cut.

`policy.py` bounds what is answered at once, `trainer.py` what is trained on at once and `forward.py` the logits that exist at once;
their bounds are taken from there. Where a batch does not fit, workers cut it further by themselves: `smallest` is where that ends.
"""

from dataclasses import dataclass, replace

from rl_swarm.config import Config
from rl_swarm.tasks import HELD_OUT_PER_TASK, parse_tasks, tasks_of
from rl_swarm.tools.memory.shape import Shape

PROMPT_TOKENS = 512  # the longest prompts of the paper's tasks (arc_1d: up to 860 characters) with the instruction around them
EASY_PROMPT_TOKENS = 128  # and of the easy ones, up to 105 characters
FRAMEWORK_BYTES = {"cuda": 600_000_000, "mps": 300_000_000, "cpu": 480_000_000}  # CUDA's context and kernels; Python, torch, helper
ALLOCATOR_SHARE = (
    0.15  # of all but the weights: what torch's CUDA allocator holds and cannot use, since a growing cache leaves holes
)
LOGIT_BYTES = {"cpu": 4, "cuda": 12, "mps": 12}  # for each logit trained on: itself in fp32, log-probabilities, their products
SAMPLING_BYTES = 18  # for each logit of a row that is sampled: logits, in fp32, tempered, probabilities, those of the step before
SORTING_BYTES = 40  # more of them where TOP_P sorts
KEPT_SHARE = 0.75  # of the rows at most, when rows that ended leave the batch: room for copies, given back late
SCORE_COPIES = 3  # of a prompt's attention scores, where they exist at all: masked, unmasked, as weights


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
    tasks = tasks_of(config)
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
    answered = replace(work, own_count=1, held_out=0) if smallest else work
    parts = [
        Part("weights", (), shape.weight_bytes),
        Part("Adam's averages", (), 2 * shape.trainable_bytes),
        *_answering(shape, answered, kind),
        *_training(shape, work, kind, smallest),
        Part("gradients", ("training",), shape.trainable_bytes),
    ]
    if kind == "cpu":  # the file's tensors, and a copy of the optimizer's: see Trainer.restore
        parts.append(Part("checkpoint being restored", ("resuming",), shape.checkpoint_bytes + 2 * shape.trainable_bytes))
    if kind == "cuda":
        spare = ALLOCATOR_SHARE * (Estimate(tuple(parts)).peak_bytes - shape.weight_bytes)
        parts.append(Part("allocator", (), int(spare)))
    return Estimate((*parts, Part("framework", (), FRAMEWORK_BYTES[kind])))


def _answering(shape: Shape, work: Workload, kind: str) -> list[Part]:
    """A batch of questions, or of held-out ones, as `Policy` cuts it; a prompt is read and kept once for all its completions."""
    from rl_swarm.learning.policy import BATCH_TOKENS

    token = shape.cached * shape.value_bytes
    attending = 2 * (shape.attention + shape.cached) + _scores(shape, kind) * SCORE_COPIES * work.prompt_tokens
    read = 4 * shape.hidden + max(3 * shape.intermediate, attending)
    cache = computing = 0
    for count, group_size in ((work.own_count, work.group_size), (work.held_out, 1)):
        questions = min(count, max(1, BATCH_TOKENS // (work.prompt_tokens + group_size * work.new_tokens)))
        prompts, own = questions * work.prompt_tokens * token, questions * group_size * work.new_tokens * token
        # Of the prompts one layer is copied at a time.
        cache = max(cache, prompts * (shape.layers + 1) + int(own * shape.layers * (1 + KEPT_SHARE)))
        reading = questions * work.prompt_tokens * read * shape.value_bytes
        sampling = questions * group_size * shape.vocabulary * (SAMPLING_BYTES + (SORTING_BYTES if work.sorts else 0))
        computing = max(computing, reading, sampling)
    # Queries, keys and values in one matrix, gate and up in another: see LeanDecoder.frozen.
    joined = shape.layers * shape.hidden * (shape.attention + shape.cached + 2 * shape.intermediate)
    joined = joined if kind == "cpu" and shape.gated and not shape.lora else 0
    return [
        Part("joined matrices", ("answering",), joined * shape.value_bytes),
        Part("key-value cache", ("answering",), cache),
        Part("reading and sampling", ("answering",), computing),
    ]


def _training(shape: Shape, work: Workload, kind: str, smallest: bool) -> list[Part]:
    """The largest part of a batch as `trainer.py` cuts it, with logits a chunk at a time as `forward.py` has them."""
    from rl_swarm.learning.engine.architecture import kept_values
    from rl_swarm.learning.engine.forward import LOGIT_VALUES
    from rl_swarm.learning.trainer import ACTIVATION_BYTES

    size, layers = shape.value_bytes, shape.layers
    kept = kept_values(layers, shape.hidden, shape.attention, shape.intermediate)
    prompts, rows = _largest_part(work, work.row_tokens if smallest else max(1, ACTIVATION_BYTES[kind] // (kept * size)))
    prompt_tokens, new_tokens = prompts * work.prompt_tokens, rows * work.new_tokens
    if shape.normed:  # before and after, and in half precision once more in fp32
        kept += layers * 3 * (shape.attention + shape.cached // 2)
    if shape.lora and size < 4:  # adapters compute in fp32 and keep their inputs so
        kept += layers * 4 // size * (2 * shape.hidden + shape.attention + shape.intermediate)
    attended = prompt_tokens * work.prompt_tokens * _scores(shape, kind)
    # Every layer of a completion has its own copy of the keys and values that it attends to, and of the mask, for each query.
    attended += rows * work.row_tokens * (shape.cached + work.new_tokens * _masks(shape, kind))
    chunk = max(1, min(new_tokens, LOGIT_VALUES // shape.vocabulary))
    # Gradients of one layer's activations, or of the head: a second one while a chunk's is added.
    head = 0 if shape.lora else shape.vocabulary * shape.hidden * (2 if new_tokens > chunk else 1)
    passing = max(head, (prompt_tokens + new_tokens) * kept // layers) + prompt_tokens * layers * shape.cached
    batch = (work.own_count + work.external_count) * (work.prompt_tokens + work.group_size * work.new_tokens)
    passing += batch * shape.hidden * (1 if shape.lora else 3)  # embedded at once; their gradients, gathered and being added
    return [
        Part("activations", ("training",), ((prompt_tokens + new_tokens) * kept + layers * attended) * size),
        Part("logits", ("training",), chunk * shape.vocabulary * (LOGIT_BYTES[kind] + (size if size < 4 else 0))),
        Part("gradients on their way", ("training",), passing * size),
    ]


def _largest_part(work: Workload, token_budget: int) -> tuple[int, int]:
    """How many prompts and completions the largest part of a batch has where all are as long as they may be."""
    from rl_swarm.learning.engine.forward import Passage, packed_cut

    questions = range(work.own_count + work.external_count)
    completion = (0,) * work.new_tokens
    passages = [Passage((question,) * work.prompt_tokens, completion) for question in questions for _ in range(work.group_size)]
    cut = [(len(prompts), max(map(len, parts))) for prompts, parts in packed_cut(passages, token_budget)]
    return max(cut, key=lambda part: part[0] * work.prompt_tokens + part[1] * work.new_tokens)


def _scores(shape: Shape, kind: str) -> int:
    """Scores that exist for each token and token of its prompt: none where a fused kernel computes attention.

    torch has none for MPS, and on CUDA for heads that share their keys only one for bfloat16 (on older cards not for float16).
    """
    shared = 2 * shape.attention > shape.cached
    return shape.heads if kind == "mps" or (kind == "cuda" and shared and shape.dtype != "bfloat16") else 0


def _masks(shape: Shape, kind: str) -> int:
    """Values kept for each token of a completion and token that it may attend to: the mask, for each head that shares its keys, or,
    without a fused kernel, the scores."""
    return shape.heads if kind == "mps" else 2 * shape.attention // shape.cached
