"""One update of a policy from a batch of scored rollouts, own and external.

The trainer owns the optimizer. It knows no verifier, store or peer: rollouts arrive scored and chosen. The maths is in `grpo.py`,
the weights of external completions in `corrections.py`, the forward pass in `engine/forward.py`. Here rollouts become passages, and
a batch is cut into parts that fit in memory. The cut does not change the gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rl_swarm.errors import CheckpointError, ModelError
from rl_swarm.learning import grpo
from rl_swarm.learning.corrections import ScoredPassage, make_correction
from rl_swarm.learning.engine.architecture import activation_bytes
from rl_swarm.learning.engine.forward import Reading, make_reader
from rl_swarm.learning.policy import Policy, out_of_memory
from rl_swarm.learning.trust import check_evidence
from rl_swarm.learning.weights import check_moments, check_random, check_weights, trainable
from rl_swarm.rollout import Rollout

# Memory for the activations of one part of a batch: enough for matrix products to reach their full rate.
ACTIVATION_BYTES = {"cpu": 900_000_000, "cuda": 2_000_000_000, "mps": 2_000_000_000}
MAX_GRAD_NORM = 1.0
MOST_UPDATES = 10**9  # that a checkpoint may claim
MOST_THREADS = 1024  # likewise


class Trainer:
    """A policy and its optimizer (Adam without weight decay). `policy_version` is the number of updates done.

    `correction` says which external completions count, and how much: one of the choices of EXTERNAL_CORRECTION. `use_threads` is
    given the number of threads of a restored checkpoint: sums over another number of threads differ in their last bits.
    """

    def __init__(
        self,
        policy: Policy,
        learning_rate: float,
        correction: str = "guarded",
        use_threads: Callable[[int], None] = torch.set_num_threads,
    ) -> None:
        self._policy, self._learning_rate, self._use_threads = policy, learning_rate, use_threads
        self._parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise ModelError(f"no parameter of {policy.name or 'the model'} is trainable: choose another MODEL_NAME")
        # Fused: one kernel reads and writes each tensor once instead of a dozen times.
        self._optimizer = torch.optim.Adam(self._parameters, lr=learning_rate, fused=True)
        self._reader = make_reader(policy.model, policy.decoder, policy.temperature, policy.pad_id)
        self._token_budget = max(1, ACTIVATION_BYTES[policy.device.type] // activation_bytes(policy.model))
        self._correction = make_correction(correction, policy.model.config.get_text_config().vocab_size)
        self.policy_version = 0

    def update(self, batch: Sequence[Rollout], rate_share: float = 1.0) -> dict[str, float]:
        """Take one step on the informative rollouts of the batch, if there are any; return the figures of the update.

        The step has `rate_share` of the learning rate. Entropy is the mean over the tokens trained on, `weight_mean` the mean over
        external completions, and `weight_mean_negative` the mean over those with a negative advantage. A figure that was not
        measured is missing. Of the `external_weighed` completions that might have taught something, `external_discounted` had
        weight 0.
        """
        informative = [rollout for rollout in batch if rollout.informative]
        fitting = [rollout for rollout in informative if self._policy.fits(rollout.question)]
        passages = [passage for rollout in fitting for passage in scored_passages(self._policy, rollout)]
        considered = [passage for passage in passages if self._correction.may_count(passage)]
        kept = [passage for passage in considered if not self._correction.known_zero(passage)]
        figures = dict.fromkeys(("tokens_trained", "loss", "grad_norm", "external_discounted"), 0.0)
        self._optimizer.param_groups[0]["lr"] = self._learning_rate * rate_share
        if kept:
            figures |= self._learn(kept)
        figures["external_discounted"] += len(considered) - len(kept)
        return figures | {
            "informative": float(len(fitting)),
            "too_long": float(len(informative) - len(fitting)),
            "external_weighed": float(sum(passage.external for passage in considered)),
            "learning_rate": self._learning_rate * rate_share,
        }

    def _learn(self, passages: list[ScoredPassage]) -> dict[str, float]:
        tokens = sum(len(passage.completion_ids) for passage in passages)
        figures = self._accumulate(passages, tokens)
        if figures["tokens_trained"] < tokens:
            self._rescale(figures, tokens)
        figures["grad_norm"] = self._step() if figures["tokens_trained"] else 0.0
        external = [passage.advantage for passage in passages if passage.external]
        for name, count in (("weight_mean", len(external)), ("weight_mean_negative", sum(advantage < 0 for advantage in external))):
            weight = figures.pop(name)  # until here the sum of the weights
            if count:
                figures[name] = weight / count
        return figures

    def _rescale(self, figures: dict[str, float], tokens: int) -> None:
        """Divide by the tokens that count instead of all tokens, in the gradient, the loss and the entropy.

        Otherwise a peer could shrink everybody's steps with text that counts for nothing. Weights are known only after the forward
        pass, when each part was already divided by the tokens of the whole batch.
        """
        scale = tokens / figures["tokens_trained"] if figures["tokens_trained"] else 0.0
        torch._foreach_mul_([parameter.grad for parameter in self._parameters if parameter.grad is not None], scale)
        figures["loss"] *= scale
        figures["entropy"] *= scale

    @property
    def trained_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self._parameters)

    def state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as tensors and plain values; of a model with an adapter, only the adapter.

        The tensors are the live ones, since a copy may not fit in memory: write them out before the next update.
        """
        return {
            "model": {name: parameter.detach() for name, parameter in trainable(self._policy.model).items()},
            "optimizer": self._optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "policy_version": self.policy_version,
            "threads": torch.get_num_threads(),
            "authors": dict(self._correction.trust.evidence),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Raise CheckpointError if it cannot be used and OtherModel if it is of another model, with nothing
        changed.

        The optimizer's settings stay this trainer's, so that a restart can change the learning rate.
        """
        own = trainable(self._policy.model)
        if not isinstance(state, dict) or not state.keys() >= {"model", "optimizer", "rng", "policy_version", "threads", "authors"}:
            raise CheckpointError("it has no trainer state")
        version, threads = state["policy_version"], state["threads"]
        if type(version) is not int or not 0 <= version <= MOST_UPDATES:
            raise CheckpointError(f"its policy version is not a number of updates up to {MOST_UPDATES}")
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise CheckpointError(f"its number of threads is not between 1 and {MOST_THREADS}")
        weights = check_weights(state["model"], own, self._policy.name)
        moments = check_moments(state["optimizer"], weights, own, version)
        random_state, evidence = check_random(state["rng"]), check_evidence(state["authors"])
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(weights[name])
        # Copies: the optimizer would keep the tensors themselves and overwrite the caller's.
        copies = {
            number: {kind: tensor.to(self._policy.device, copy=True) for kind, tensor in entry.items()}
            for number, entry in moments.items()
        }
        self._optimizer.load_state_dict({"state": copies, "param_groups": self._optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(random_state)
        self._use_threads(threads)
        self._correction.trust.evidence = evidence
        self.policy_version = version

    def _accumulate(self, passages: list[ScoredPassage], tokens: int) -> dict[str, float]:
        """Leave the gradient of the whole batch in the parameters; return its figures, summed over the parts.

        If a part does not fit in memory, drop what was gathered, since a backward pass may have died midway, and cut this batch and
        all later ones finer, down to single completions.
        """
        while True:
            # On a CPU, gradients keep their memory: freed and allocated again, it would end up among the activations.
            self._optimizer.zero_grad(set_to_none=self._policy.device.type != "cpu")
            self._correction.trust.begin()
            try:
                figures: dict[str, float] = {}
                for rows, reading in self._reader.parts(passages, self._token_budget):
                    for name, value in self._backward([passages[row] for row in rows], reading, tokens).items():
                        figures[name] = figures.get(name, 0.0) + value
                self._correction.trust.finish()
                return figures
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
            self._cut_finer([passage.length for passage in passages])  # not in the except block: the exception holds tensors

    def _cut_finer(self, lengths: list[int]) -> None:
        if self._token_budget <= max(lengths):
            self._optimizer.zero_grad()
            raise ModelError(
                f"a single completion with its prompt, {max(lengths)} tokens, does not fit in the memory of {self._policy.device}: "
                "lower MAX_NEW_TOKENS, set LORA_RANK, or choose a smaller MODEL_NAME"
            )
        self._token_budget = max(min(self._token_budget, sum(lengths)) // 2, max(lengths))
        if self._policy.device.type == "cuda":
            torch.cuda.empty_cache()

    def _backward(self, passages: list[ScoredPassage], reading: Reading, tokens: int) -> dict[str, float]:
        """Add the gradient of one part of a batch of `tokens` tokens; return the part's share of each figure."""
        mask_BT, weights_B = reading.mask_BT, self._correction.weights(passages, reading)
        advantages_B = mask_BT.new_tensor([passage.advantage for passage in passages])
        external_B = mask_BT.new_tensor([passage.external for passage in passages]).bool()
        counted_BT = mask_BT * (weights_B > 0).unsqueeze(-1)
        loss = grpo.token_loss(reading.logprobs_BT, advantages_B, weights_B, mask_BT, tokens)
        loss.backward()
        return {
            "tokens_trained": counted_BT.sum().item(),
            "loss": loss.item(),
            "entropy": grpo.token_mean(reading.entropies_BT, counted_BT, tokens).item(),
            "external_discounted": (external_B & (weights_B == 0)).sum().item(),
            "weight_mean": weights_B[external_B].sum().item(),
            "weight_mean_negative": weights_B[external_B & (advantages_B < 0)].sum().item(),
        }

    def _step(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRAD_NORM).item()
        if not math.isfinite(norm):
            self._optimizer.zero_grad()
            raise ModelError(
                f"the gradient of update {self.policy_version + 1} is not finite: lower LEARNING_RATE or set DTYPE to float32, and "
                "start again from the last checkpoint"
            )
        self._optimizer.step()
        if self._policy.device.type != "cpu":
            self._optimizer.zero_grad()  # frees their memory for generating
        self.policy_version += 1
        return norm


def scored_passages(policy: Policy, rollout: Rollout) -> list[ScoredPassage]:
    """The completions of one rollout as this policy's token ids, with their advantages; those without tokens are left out."""
    prompt = rollout.question.prompt
    advantages = grpo.group_advantages(torch.tensor(rollout.values, dtype=torch.float64)).tolist()
    passages = []
    for completion, advantage in zip(rollout.completions, advantages, strict=True):
        ids, whole = policy.completion_ids(completion)
        if ids:
            context = tuple(policy.context_ids(prompt, completion.text))
            passages.append(ScoredPassage(context, ids, completion, advantage, whole, rollout.node_id))
    return passages
