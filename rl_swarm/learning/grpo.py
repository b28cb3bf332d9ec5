"""Group-relative policy optimisation as pure tensor maths: rewards and log-probabilities in, advantages and losses out.

Nothing here holds state, touches a model or knows what a rollout is. docs/algorithm.md describes the algorithm as a whole.

Shapes are in the names:
    G  completions of one rollout
    B  completions of one micro-batch, of any number of rollouts
    T  tokens of a completion, padded
`mask_BT` is 1.0 where a token belongs to a completion and 0.0 on padding.
"""

import torch
from torch import Tensor

EPSILON = 1e-8  # keeps the advantage finite when all rewards of a group are equal


def group_advantages(rewards_G: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-8) inside one group, with the population's standard deviation (divided by G, not G - 1).

    The population form is exact for the group itself, and bounds |advantage| by sqrt(G - 1).
    """
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(correction=0) + EPSILON)


def masked_row_sums(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (values_BT * mask_BT).sum(-1)


def token_loss(logprobs_BT: Tensor, advantages_B: Tensor, weights_B: Tensor, mask_BT: Tensor, token_count: int) -> Tensor:
    """This micro-batch's part of the loss: minus weight · advantage · π / π_old of its tokens, over all tokens of the batch.

    With one update per batch, π_old is π itself. The ratio is exactly 1, with the gradient of log π, so the clip of
    arXiv:2509.08721 §4.2 never acts and is left out. Dividing by the token count of the whole batch makes the parts add up to the
    same mean for every cut.
    """
    ratios_BT = torch.exp(logprobs_BT - logprobs_BT.detach())
    return -(weights_B * masked_row_sums(ratios_BT * advantages_B.unsqueeze(-1), mask_BT)).sum() / token_count


def token_mean(values_BT: Tensor, mask_BT: Tensor, token_count: int) -> Tensor:
    """This micro-batch's part of the mean over all tokens of the batch."""
    return masked_row_sums(values_BT, mask_BT).sum() / token_count
