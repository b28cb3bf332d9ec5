"""From logits to probabilities, to draws of the next token, and to log-probabilities of tokens already written.

Letters at the end of a name are the dimensions of a tensor: N rows, V the vocabulary, C candidates (blocks of the vocabulary).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOWEST = torch.finfo(torch.float32).min
BLOCK = 512  # tokens of the vocabulary that are drawn from together
CACHED_VALUES = 1 << 18  # fp32 values that stay in a CPU's cache from one operation to the next, 1 MB


def next_token_probs(logits_NV: Tensor, temperature: float) -> Tensor:
    """The tempered distribution, in fp32 whatever the model computes in."""
    return torch.softmax(logits_NV.float() if temperature == 1 else logits_NV.float() / temperature, dim=-1)


def chosen(values_NV: Tensor, ids_N: Tensor) -> Tensor:
    return values_NV.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)


def read_logits(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The log-probability of each given token and the entropy in nats of its distribution, at `temperature`.

    The entropy carries no gradient. The logits are used up: if they are fp32, their memory is reused.
    """
    return _ReadLogits.apply(logits_NV, ids_N, temperature)


class _ReadLogits(torch.autograd.Function):
    """Autograd would keep four tensors of the logits' size, and a vocabulary is wide. This keeps one: first the logits, then the
    probabilities, at last the gradient. It works on as many rows at a time as stay in a cache.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        values_NV = logits_NV.detach().float()
        chosen_N, entropies_N = values_NV.new_empty(len(ids_N)), values_NV.new_empty(len(ids_N))
        rows = max(1, CACHED_VALUES // values_NV.shape[-1] if values_NV.device.type == "cpu" else len(values_NV))
        chunks = (each.split(rows) for each in (values_NV, ids_N, chosen_N, entropies_N))
        for values, ids, logprobs_of, entropies in zip(*chunks, strict=True):
            if temperature != 1:
                values.div_(temperature)
            logprobs = torch.log_softmax(values, dim=-1)
            logprobs_of.copy_(chosen(logprobs, ids))
            torch.exp(logprobs, out=values)
            # An impossible token has a log-probability of minus infinity: 0 · lowest is 0, and 0 · infinity would not be a number.
            entropies.copy_(-torch.linalg.vecdot(values, logprobs.clamp_(min=LOWEST)))
        ctx.probs_NV, ctx.ids_N, ctx.temperature, ctx.dtype = values_NV, ids_N, temperature, logits_NV.dtype
        ctx.mark_non_differentiable(entropies_N)
        return chosen_N, entropies_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Any) -> tuple[Tensor, None, None]:
        """d log p(chosen) / d logits = (1 at the chosen token, 0 elsewhere) - probabilities, over the temperature."""
        grad_N1 = (grad_N / ctx.temperature).unsqueeze(-1)
        grad_NV = ctx.probs_NV.mul_(-grad_N1).scatter_add_(-1, ctx.ids_N.unsqueeze(-1), grad_N1)
        del ctx.probs_NV  # a second backward pass would take this gradient for probabilities
        return grad_NV.to(ctx.dtype), None, None


def draw(probs_NV: Tensor, uniforms_N: Tensor, top_p: float) -> Tensor:
    """Sample one token a row by inverting the cumulative distribution at a uniform number in [0, 1).

    Draws a block of the vocabulary by the blocks' sums, then a token inside it: a running sum over a whole vocabulary would cost
    more than the rest of sampling. Running sums have the precision of the uniform numbers, double if the device has it: in single
    precision, a hundred thousand small terms would shift the unlikely end of the vocabulary.
    """
    if top_p < 1:
        probs_NV = nucleus(probs_NV, top_p)
    if probs_NV.shape[-1] <= BLOCK:
        return _draw_index(probs_NV, uniforms_N)[0]
    missing = -probs_NV.shape[-1] % BLOCK
    filled_NV = torch.nn.functional.pad(probs_NV, (0, missing)) if missing else probs_NV
    blocks_NCB = filled_NV.view(len(probs_NV), -1, BLOCK)
    block_N, uniforms_N = _draw_index(blocks_NCB.sum(-1), uniforms_N)
    inside_N, _ = _draw_index(blocks_NCB[torch.arange(len(block_N), device=block_N.device), block_N], uniforms_N)
    return (block_N * BLOCK + inside_N).clamp(max=probs_NV.shape[-1] - 1)


def _draw_index(weights_NC: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
    """Draw an index by its weight. Also return where in that index's share the uniform number fell, which is uniform again."""
    sums_NC = weights_NC.cumsum(-1, dtype=uniforms_N.dtype)
    targets_N1 = (uniforms_N * sums_NC[:, -1]).unsqueeze(-1)
    index_N1 = torch.searchsorted(sums_NC, targets_N1, right=True).clamp(max=weights_NC.shape[-1] - 1)
    weight_N1 = weights_NC.gather(-1, index_N1)
    rest_N1 = (targets_N1 - (sums_NC.gather(-1, index_N1) - weight_N1)) / weight_N1
    return index_N1.squeeze(-1), rest_N1.squeeze(-1).clamp(0, 1 - torch.finfo(uniforms_N.dtype).eps)


def nucleus(probs_NV: Tensor, top_p: float) -> Tensor:
    """Zero all but the smallest set of most likely tokens with `top_p` of the probability, without normalising again."""
    sorted_NV, order_NV = probs_NV.sort(dim=-1, descending=True)
    dropped_NV = sorted_NV.cumsum(-1) - sorted_NV >= top_p
    return probs_NV.scatter(-1, order_NV, sorted_NV.masked_fill(dropped_NV, 0.0))
