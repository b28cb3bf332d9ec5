"""One update of a policy from a batch of scored rollouts, own and external.

Rollouts come scored and chosen; the trainer asks no verifier, no store and no peer. It owns the optimizer. The maths is in
`grpo.py` and the forward pass in `forward.py`; here rollouts become examples, and parts of a batch keep within a budget of memory.
How the batch is cut does not change the gradient.
"""

import contextlib
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rl_swarm.errors import CheckpointError, ConfigError, ModelError
from rl_swarm.learning import grpo
from rl_swarm.learning.engine.architecture import activation_bytes
from rl_swarm.learning.engine.forward import Passage, Reading, make_reader
from rl_swarm.learning.policy import Policy, out_of_memory
from rl_swarm.learning.weights import check_moments, check_random, check_weights, trainable
from rl_swarm.rollout import Rollout

# What the forward pass of one part of a batch leaves for its backward pass: enough for matrix products to reach their full rate.
ACTIVATION_BYTES = {"cpu": 900_000_000, "cuda": 2_000_000_000, "mps": 2_000_000_000}
MOST_UPDATES = 10**9  # that a checkpoint may say it has behind it

CORRECTIONS = ("guarded", "topr", "none")
TOKEN_MEANS = ("loss", "kl", "entropy", "clip_fraction")


@dataclass(frozen=True)
class TrainerSettings:
    """`correction` is what is done about external rollouts, which are off-policy and of strangers: `guarded`, `topr`, or `none` as
    in the paper.

    `max_grad_norm` may be infinite. Without `micro_batch_tokens`, as many tokens are computed at once as `ACTIVATION_BYTES` have
    room for.
    """

    learning_rate: float
    correction: str = "guarded"
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_weight: float = 0.0
    updates_per_batch: int = 1
    max_grad_norm: float = 1.0
    micro_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.correction not in CORRECTIONS:
            raise ConfigError(f"EXTERNAL_CORRECTION must be one of {', '.join(CORRECTIONS)}, got {self.correction!r}")
        if not (self.learning_rate >= 0 and math.isfinite(self.learning_rate)):
            raise ConfigError(f"LEARNING_RATE must be at least 0, got {self.learning_rate}")
        for name in ("updates_per_batch", "micro_batch_tokens"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}")
        if not (0 <= self.clip_low < 1 and self.clip_high >= 0 and self.kl_weight >= 0 and self.max_grad_norm > 0):
            raise ConfigError(
                f"clip_low must be in [0, 1), clip_high and kl_weight not negative, max_grad_norm above 0: got {self}"
            )


@dataclass(frozen=True)
class Example:
    """One completion as it is trained on. `mu_logprob` is what its author says of it; `recorded` is empty for an external one.
    One that is not `whole` was longer than this policy ever writes, and had to be cut."""

    passage: Passage
    advantage: float
    external: bool
    whole: bool
    mu_logprob: float
    recorded: tuple[float, ...]


class _Pending:
    """A batch being trained on, with what is known of each example besides its ids.

    `old` are log-probabilities before the first of several updates and `reference` those of the frozen policy, by row; both are
    filled on the first pass where nothing was recorded.
    """

    def __init__(self, examples: list[Example], device: torch.device) -> None:
        self.examples = examples
        self.passages = [example.passage for example in examples]
        self.old = {row: torch.tensor(e.recorded, device=device) for row, e in enumerate(examples) if e.recorded}
        self.reference: dict[int, Tensor] = {}
        self.tokens = sum(len(example.passage.completion_ids) for example in examples)
        self.external = sum(example.external for example in examples)
        self.external_negative = sum(example.external and example.advantage < 0 for example in examples)


class Trainer:
    """A policy and its optimizer (Adam without weight decay). `policy_version` is the number of updates done.

    With `kl_weight` the reference is the policy as it is now, so build the trainer before restoring a checkpoint into it. Where the
    model has an adapter, the reference is the model without it; otherwise it is a copy, and costs as much memory.
    """

    def __init__(self, policy: Policy, settings: TrainerSettings) -> None:
        self._policy, self._settings = policy, settings
        self._parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise ModelError(f"no parameter of {policy.name or 'the model'} is trainable")
        self._optimizer = torch.optim.Adam(self._parameters, lr=settings.learning_rate, fused=fused_adam(policy.device))
        self._reader = make_reader(policy)
        self._frozen = None
        if settings.kl_weight > 0 and not hasattr(policy.model, "disable_adapter"):
            self._frozen = copy.deepcopy(policy.model).requires_grad_(False)
        room = ACTIVATION_BYTES[policy.device.type]
        self._token_budget = settings.micro_batch_tokens or max(1, room // activation_bytes(policy.model))
        self._vocabulary = policy.model.config.get_text_config().vocab_size
        self.policy_version = 0

    def update(self, batch: Sequence[Rollout]) -> dict[str, float]:
        """Take `updates_per_batch` steps on the informative rollouts of the batch, none if there is none; return what was measured.

        What was not measured is left out. Entropy, clip fraction and KL are means over the tokens trained on; `weight_mean` is over
        external completions and `weight_mean_negative` over those of them with a negative advantage. Of `external_weighed`
        completions that might have taught something, `external_discounted` counted for nothing. Several updates are averaged.
        """
        fitting = [rollout for rollout in batch if self._policy.fits(rollout.question)]
        informative = [rollout for rollout in fitting if rollout.informative]
        found = [example for rollout in informative for example in examples_of(self._policy, rollout) if self._may_count(example)]
        examples = [example for example in found if not self._cut_short(example)]
        metrics = {
            "informative": float(len(informative)),
            "too_long": float(len(batch) - len(fitting)),
            "tokens_trained": 0.0,
            "loss": 0.0,
            "grad_norm": 0.0,
        }
        if weighed := sum(example.external for example in found):
            metrics |= {"external_weighed": float(weighed), "external_discounted": 0.0}
        metrics |= self._learn(examples) if examples else {}
        if weighed:
            metrics["external_discounted"] += len(found) - len(examples)
        return metrics

    def _may_count(self, example: Example) -> bool:
        """Guarded, external rollouts teach what to do, never what to avoid: crafted text would have good things avoided."""
        return self._settings.correction != "guarded" or not example.external or example.advantage > 0

    def _cut_short(self, example: Example) -> bool:
        """Guarded, what had to be cut teaches nothing: it may have been paid for what is no longer there."""
        return self._settings.correction == "guarded" and example.external and not example.whole

    def _learn(self, examples: list[Example]) -> dict[str, float]:
        pending, updates = _Pending(examples, self._policy.device), self._settings.updates_per_batch
        totals: dict[str, float] = {}
        for _ in range(updates):
            measured = self._accumulate(pending)
            if measured["tokens_trained"] < pending.tokens:
                measured = self._leave_out(measured, pending.tokens)
            _add(totals, measured)
            _add(totals, {"grad_norm": self._step() if measured["tokens_trained"] else 0.0})
        return {name: total / updates for name, total in totals.items()}

    def _leave_out(self, measured: dict[str, float], tokens: int) -> dict[str, float]:
        """Take tokens of weight 0 out of the mean that the gradient and the measurements are: they are in the divisor only.

        Otherwise a peer could shrink everybody's steps with text that counts for nothing. The weights are known after the forward
        pass, when each part was already divided by the tokens of the whole batch.
        """
        counted = measured["tokens_trained"]
        scale = tokens / counted if counted else 0.0
        torch._foreach_mul_([parameter.grad for parameter in self._parameters if parameter.grad is not None], scale)
        return {name: value * scale if name in TOKEN_MEANS else value for name, value in measured.items()}

    @property
    def trained_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self._parameters)

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on: tensors and plain values, of an adapter only the adapter.

        The tensors are the live ones, not copies of a model that may fill the memory: write them out before the next update.
        """
        return {
            "model": {name: parameter.detach() for name, parameter in trainable(self._policy.model).items()},
            "optimizer": self._optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "policy_version": self.policy_version,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; raise CheckpointError, with nothing changed, if it cannot be used, and OtherModel if it is of
        another model.

        The optimizer's settings are this trainer's, not the state's, so that a restart can change the learning rate.
        """
        own = trainable(self._policy.model)
        if not isinstance(state, dict) or not state.keys() >= {"model", "optimizer", "rng", "policy_version"}:
            raise CheckpointError("it has no trainer state")
        version = state["policy_version"]
        if type(version) is not int or not 0 <= version <= MOST_UPDATES:
            raise CheckpointError(f"its policy version is not a number of updates up to {MOST_UPDATES}")
        weights = check_weights(state["model"], own, self._policy.name)
        moments = check_moments(state["optimizer"], weights, own, version)
        random_state = check_random(state["rng"])
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(weights[name])
        # Copies, since the optimizer would adopt the tensors themselves and change them under their owner.
        copies = {
            number: {kind: tensor.to(self._policy.device, copy=True) for kind, tensor in entry.items()}
            for number, entry in moments.items()
        }
        self._optimizer.load_state_dict({"state": copies, "param_groups": self._optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(random_state)
        self.policy_version = version

    def _accumulate(self, pending: _Pending) -> dict[str, float]:
        """Leave the gradient of the whole batch in the parameters.

        Where a part of it does not fit in memory, all that was gathered is thrown away, since a backward pass may have died midway,
        and this batch and all later ones are cut finer, down to single completions.
        """
        while True:
            # A processor's memory for gradients stays where it is: given back and taken again, it would fall among the activations.
            self._optimizer.zero_grad(set_to_none=self._policy.device.type != "cpu")
            try:
                if self._settings.kl_weight > 0:
                    self._read_reference(pending)
                parts = self._reader.parts(self._policy.model, pending.passages, self._token_budget)
                totals: dict[str, float] = {}
                for rows, reading in parts:
                    _add(totals, self._backward(pending, rows, reading))
                return totals
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
            self._cut_finer(pending)  # outside the handler, whose exception would keep the failed attempt's tensors alive

    def _cut_finer(self, pending: _Pending) -> None:
        lengths = [passage.length for passage in pending.passages]
        if self._token_budget <= max(lengths):
            self._optimizer.zero_grad()
            raise ModelError(
                f"a single completion with its prompt, {max(lengths)} tokens, does not fit in the memory of {self._policy.device}: "
                "lower MAX_NEW_TOKENS, set LORA_RANK, or choose a smaller MODEL_NAME"
            )
        self._token_budget = max(min(self._token_budget, sum(lengths)) // 2, max(lengths))
        if self._policy.device.type == "cuda":
            torch.cuda.empty_cache()

    def _backward(self, pending: _Pending, rows: list[int], reading: Reading) -> dict[str, float]:
        """Add one part of the gradient; return that part of each measurement. `tokens_trained` leaves tokens of weight 0 out."""
        settings, examples = self._settings, [pending.examples[row] for row in rows]
        logprobs_BT, mask_BT = reading.logprobs_BT, reading.mask_BT
        advantages_B = mask_BT.new_tensor([example.advantage for example in examples])
        external_B = mask_BT.new_tensor([example.external for example in examples]).bool()
        weights_B = torch.ones_like(advantages_B)
        if settings.correction == "guarded":
            weights_B = grpo.plausible_weights(logprobs_BT, reading.entropies_BT, mask_BT, external_B, self._vocabulary)
        elif settings.correction == "topr":
            mu_logprobs_B = mask_BT.new_tensor([example.mu_logprob for example in examples])
            weights_B = grpo.topr_weights(logprobs_BT, mask_BT, advantages_B, external_B, mu_logprobs_B)
        counted_BT = mask_BT * (weights_B > 0).unsqueeze(-1)
        ratios_BT = grpo.ratios(logprobs_BT, self._old_logprobs(pending, rows, logprobs_BT))
        objective_BT = grpo.clipped_objective(ratios_BT, advantages_B, settings.clip_low, settings.clip_high)
        loss = grpo.token_loss(objective_BT, weights_B, mask_BT, pending.tokens)
        measured = {"tokens_trained": counted_BT.sum().item()}
        if settings.kl_weight > 0:
            reference_BT = pad_sequence([pending.reference[row] for row in rows], batch_first=True)
            kl = grpo.token_mean(grpo.kl_estimates(logprobs_BT, reference_BT), counted_BT, pending.tokens)
            loss = loss + settings.kl_weight * kl
            measured["kl"] = kl.item()
        loss.backward()
        measured["loss"] = loss.item()
        measured["entropy"] = grpo.token_mean(reading.entropies_BT, counted_BT, pending.tokens).item()
        clipped_BT = grpo.clipped(ratios_BT.detach(), advantages_B, settings.clip_low, settings.clip_high)
        measured["clip_fraction"] = grpo.token_mean(clipped_BT, counted_BT, pending.tokens).item()
        if pending.external:
            measured["external_discounted"] = (external_B & (weights_B == 0)).sum().item()
            measured["weight_mean"] = weights_B[external_B].sum().item() / pending.external
        if pending.external_negative:
            measured["weight_mean_negative"] = weights_B[external_B & (advantages_B < 0)].sum().item() / pending.external_negative
        return measured

    def _step(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm).item()
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise ModelError(
                f"the gradient of update {self.policy_version + 1} is not finite: lower LEARNING_RATE or set DTYPE to float32, and "
                "start again from the last checkpoint"
            )
        self._optimizer.step()
        if self._policy.device.type != "cpu":
            self._optimizer.zero_grad()
        self.policy_version += 1
        return norm

    def _old_logprobs(self, pending: _Pending, rows: list[int], logprobs_BT: Tensor) -> Tensor | None:
        """What the policy is compared with: itself (None) if there is a single update, else what was recorded while sampling.

        Nobody recorded external completions, so the first pass does.
        """
        if self._settings.updates_per_batch == 1:
            return None
        _remember(pending.old, pending, rows, logprobs_BT)
        return pad_sequence([pending.old[row] for row in rows], batch_first=True)

    def _read_reference(self, pending: _Pending) -> None:
        if pending.reference:
            return
        adapter_off = contextlib.nullcontext() if self._frozen is not None else self._policy.model.disable_adapter()
        model, found = self._policy.model if self._frozen is None else self._frozen, dict[int, Tensor]()
        with torch.no_grad(), adapter_off:
            for rows, reading in self._reader.parts(model, pending.passages, self._token_budget):
                _remember(found, pending, rows, reading.logprobs_BT)
        pending.reference = found


def fused_adam(device: torch.device) -> bool:
    """Whether Adam has one kernel for all its arithmetic here: it reads and writes each tensor once instead of a dozen times."""
    return device.type in ("cpu", "cuda", "mps")


def examples_of(policy: Policy, rollout: Rollout) -> list[Example]:
    """The completions of one rollout as this policy's token ids, with their advantages; one without tokens has nothing to train on.

    What a peer claims of a completion that had to be cut is of another, longer text: it is treated like no claim.
    """
    prompt_ids = tuple(policy.prompt_ids(rollout.question.prompt))
    examples = []
    for completion, advantage in zip(rollout.completions, grpo.group_advantages(_rewards(rollout)).tolist(), strict=True):
        ids, whole = policy.completion_ids(completion)
        # No tokenizer makes more tokens of a text than it has bytes, the end token aside.
        mu_logprob = grpo.credible_logprob(completion.logprob if whole else None, len(completion.text.encode()) + 1)
        passage = Passage(prompt_ids, ids)
        examples.append(Example(passage, advantage, not completion.token_ids, whole, mu_logprob, completion.token_logprobs))
    return [example for example in examples if example.passage.completion_ids]


def _rewards(rollout: Rollout) -> Tensor:
    return torch.tensor(rollout.rewards, dtype=torch.float64)


def _remember(memory: dict[int, Tensor], pending: _Pending, rows: list[int], logprobs_BT: Tensor) -> None:
    """Keep the log-probabilities of rows that are not known yet, without their padding."""
    for row, logprobs_T in zip(rows, logprobs_BT.detach(), strict=True):
        if row not in memory:
            memory[row] = logprobs_T[: len(pending.passages[row].completion_ids)].clone()


def _add(totals: dict[str, float], parts: dict[str, float]) -> None:
    for name, part in parts.items():
        totals[name] = totals.get(name, 0.0) + part
