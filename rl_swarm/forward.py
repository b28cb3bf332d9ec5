"""Log-probabilities that a model gives to completions already written: one forward pass over a micro-batch.

Logits exist only at the positions that predict a token of a completion. Nothing here knows advantages, losses or gradients beyond
keeping them possible; a faster pass over the same passages can take this one's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from rl_swarm import grpo
from rl_swarm.policy import Policy, accepted_arguments, without_adapter

LOGIT_VALUES = 1 << 26  # logits that exist at once, 256 MB in fp32; a micro-batch with more is read in chunks


@dataclass(frozen=True)
class Passage:
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class Reading:
    """Per completion token, padded on the right with zeros; `entropies_BT` carries no gradient."""

    logprobs_BT: Tensor
    entropies_BT: Tensor
    mask_BT: Tensor


class PaddedReader:
    """Passages side by side, padded on the right: works for every causal language model."""

    def __init__(self, policy: Policy, logit_values: int = LOGIT_VALUES) -> None:
        self._device, self._pad_id, self._temperature = policy.device, policy.pad_id, policy.temperature
        self._plain_head = has_plain_head(policy.model, policy.end_id)
        self._logit_values = logit_values

    def read(self, model: Any, passages: Sequence[Passage]) -> Reading:
        """Read with `model`, which is the policy's or one of the same architecture (the reference)."""
        rows = [torch.tensor(passage.prompt_ids + passage.completion_ids) for passage in passages]
        ids_BS = pad_sequence(rows, batch_first=True, padding_value=self._pad_id).to(self._device)
        starts_B1 = torch.tensor([[len(passage.prompt_ids)] for passage in passages], device=self._device)
        ends_B1 = torch.tensor([[passage.length] for passage in passages], device=self._device)
        positions_S = torch.arange(ids_BS.shape[1], device=self._device)
        predicting_BS = (positions_S >= starts_B1 - 1) & (positions_S < ends_B1 - 1)  # token s is predicted at position s - 1
        optional = {"position_ids": positions_S.expand_as(ids_BS)} if "position_ids" in accepted_arguments(model) else {}
        inputs = {"input_ids": ids_BS, "attention_mask": (positions_S < ends_B1).long(), "use_cache": False, **optional}
        logprobs_N, entropies_N = self._read_tokens(model, inputs, predicting_BS, ids_BS.roll(-1, dims=1)[predicting_BS])
        lengths = [len(passage.completion_ids) for passage in passages]
        padded = (logprobs_N, entropies_N, torch.ones_like(entropies_N))
        return Reading(*(pad_sequence(values_N.split(lengths), batch_first=True) for values_N in padded))

    def _read_tokens(self, model: Any, inputs: dict[str, Any], predicting_BS: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Where the vocabulary makes the logits large they are computed a chunk at a time, and again in the backward pass."""
        if self._plain_head:
            values_ND, head = _decoder(model)(**inputs).last_hidden_state[predicting_BS], model.get_output_embeddings()
        else:
            values_ND, head = _late_logits(model, inputs, predicting_BS), torch.nn.Identity()

        def read(values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            logprobs_NV = grpo.next_token_logprobs(head(values), self._temperature)
            return grpo.chosen_logprobs(logprobs_NV, targets), grpo.entropies(logprobs_NV)

        size = max(1, self._logit_values // model.config.get_text_config().vocab_size)
        if len(targets_N) <= size:
            return read(values_ND, targets_N)
        chunks = zip(values_ND.split(size), targets_N.split(size), strict=True)
        parts = [checkpoint(read, values, targets, use_reentrant=False) for values, targets in chunks]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


@torch.no_grad()
def has_plain_head(model: Any, some_id: int) -> bool:
    """Whether logits are the last hidden state through the output embedding and nothing else.

    Tried on one token rather than looked up by name: some models cap or scale their logits, and those must be asked for theirs.
    """
    ids = torch.tensor([[some_id]], device=model.get_input_embeddings().weight.device)
    head = model.get_output_embeddings()
    if head is None:
        return False
    hidden = getattr(_decoder(model)(input_ids=ids, use_cache=False), "last_hidden_state", None)
    return hidden is not None and torch.equal(head(hidden), model(input_ids=ids, use_cache=False).logits)


def _decoder(model: Any) -> Any:
    """The model without its head."""
    return without_adapter(model).base_model


def _late_logits(model: Any, inputs: dict[str, Any], predicting_BS: Tensor) -> Tensor:
    """The model's own logits at the predicting positions; positions before the first of them are left out where it can do that."""
    if "logits_to_keep" not in accepted_arguments(model):
        return model(**inputs).logits[predicting_BS]
    kept = int(predicting_BS.shape[1] - predicting_BS.any(dim=0).nonzero()[0])
    return model(**inputs, logits_to_keep=kept).logits[predicting_BS[:, -kept:]]
