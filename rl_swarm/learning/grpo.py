"""Group-relative policy optimisation as pure tensor maths: rewards and log-probabilities in, weights and losses out.

Nothing here holds state, touches a model or knows what a rollout is. The algorithm as a whole is in docs/algorithm.md.

Shapes are in the names:
    G  completions of one rollout        B  completions in one micro-batch, of any number of rollouts
    T  tokens of a completion, padded    N  tokens without padding, rows one after the other        V  vocabulary
`mask_BT` is 1.0 where a token belongs to a completion and 0.0 on padding.
"""

import math

import torch
from torch import Tensor

EPSILON = 1e-8  # keeps the advantage finite when all rewards of a group are equal
MOST_NATS_PER_TOKEN = 20.0  # a uniform choice among 485 million tokens: nobody samples below that on average
TOKENS_A_GUESS = (
    32  # a model's own samples hold a quarter of the surprise that this allows (SmolLM2-135M: 0.08 of 0.34 nats a token)
)
VANISHING = torch.finfo(torch.float32).eps
LARGEST_LOG_GAP = 10.0  # beyond e^10 the KL estimate says "far away" and nothing more, but its gradient would drown the rest


def group_advantages(rewards_G: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-8) inside one group, with the population's standard deviation (divided by G, not G - 1).

    The population form is exact for what it describes, the group itself, and bounds |advantage| by sqrt(G - 1).
    """
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(correction=0) + EPSILON)


def ratios(logprobs_BT: Tensor, old_logprobs_BT: Tensor | None) -> Tensor:
    """π / π_old of every token. Without old log-probabilities the policy is compared with itself: exactly 1, with a gradient."""
    return torch.exp(logprobs_BT - (logprobs_BT.detach() if old_logprobs_BT is None else old_logprobs_BT))


def clipped_objective(ratios_BT: Tensor, advantages_B: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(ρA, clip(ρ, 1 - low, 1 + high)A) for every token, the objective to be raised (arXiv:2509.08721 §4.2: 0.2 and 0.28)."""
    advantages_B1 = advantages_B.unsqueeze(-1)
    return torch.minimum(ratios_BT * advantages_B1, ratios_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_B1)


def clipped(ratios_BT: Tensor, advantages_B: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """1.0 where the clip took the gradient away: the ratio has already moved past the bound in the advantage's direction."""
    advantages_B1 = advantages_B.unsqueeze(-1)
    risen = (ratios_BT > 1 + clip_high) & (advantages_B1 > 0)
    fallen = (ratios_BT < 1 - clip_low) & (advantages_B1 < 0)
    return (risen | fallen).float()


def credible_logprob(claim: float | None, most_tokens: int) -> float:
    """A peer's claimed log-probability of a completion, or 0.0 (probability one) where the claim cannot be true.

    Missing, not finite, positive, or below what `most_tokens` tokens can have. 0.0 is the conservative reading: no probability is
    larger, so the weight that follows from it is the smallest that any honest claim could have led to.
    """
    if claim is None or not math.isfinite(claim) or claim > 0 or claim < -MOST_NATS_PER_TOKEN * most_tokens:
        return 0.0
    return float(claim)


def topr_weights(logprobs_BT: Tensor, mask_BT: Tensor, advantages_B: Tensor, external_B: Tensor, mu_logprobs_B: Tensor) -> Tensor:
    """Tapered off-policy REINFORCE (arXiv:2503.14286 §3): how much each completion counts, always within [0, 1], no gradient.

    External completions with a negative advantage count by clip(π(y)/μ(y), 0, 1) over the whole completion: what this policy
    would hardly say needs no pushing down. Everything else counts in full. Weights that vanish beside 1 in fp32 are 0.
    """
    with torch.no_grad():
        log_ratio_B = masked_row_sums(logprobs_BT, mask_BT) - mu_logprobs_B
        tapered_B = torch.exp(log_ratio_B.clamp(max=0.0))
        tapered_B = tapered_B.masked_fill(tapered_B < VANISHING, 0.0)
        return torch.where(external_B & (advantages_B < 0), tapered_B, torch.ones_like(tapered_B))


def plausible_weights(logprobs_BT: Tensor, entropies_BT: Tensor, mask_BT: Tensor, external_B: Tensor, vocabulary: int) -> Tensor:
    """1, but 0 for an external completion that this policy finds absurd. No gradient, and nothing that an author claims enters.

    A token surprises by what its -log π exceeds the entropy at its place, which is what is expected there, and half of a blind
    guess among the whole vocabulary. Absurd is a completion whose surprises add up to more than one blind guess for every
    `TOKENS_A_GUESS`, but at least half a one. So an honest peer's better idea passes, which turns off the beaten path now and
    then, and right answers wrapped in text that nobody should learn to write do not. Surprises are added up, not all tokens
    averaged: phrases that are likely by themselves, strung together, would bring the mean back up.
    """
    guess = math.log(vocabulary)
    with torch.no_grad():
        surprises_B = masked_row_sums((-logprobs_BT - entropies_BT - guess / 2).clamp(min=0), mask_BT)
        allowed_B = guess * (mask_BT.sum(-1) / TOKENS_A_GUESS).clamp(min=0.5)
        return ((surprises_B <= allowed_B) | ~external_B).to(logprobs_BT.dtype)


def kl_estimates(logprobs_BT: Tensor, reference_logprobs_BT: Tensor) -> Tensor:
    """KL(π ‖ reference) a token by the estimator e^d - d - 1 with d = log reference - log π: never negative, low variance."""
    gap_BT = (reference_logprobs_BT - logprobs_BT).clamp(max=LARGEST_LOG_GAP)
    return torch.exp(gap_BT) - gap_BT - 1


def masked_row_sums(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (values_BT * mask_BT).sum(-1)


def token_loss(objective_BT: Tensor, weights_B: Tensor, mask_BT: Tensor, token_count: int) -> Tensor:
    """This micro-batch's part of the batch's loss: minus the weighted objective of its tokens, over the tokens of the whole batch.

    Dividing by the batch's own count and not the micro-batch's makes the parts add up to the same mean however the batch is cut.
    """
    return -(weights_B * masked_row_sums(objective_BT, mask_BT)).sum() / token_count


def token_mean(values_BT: Tensor, mask_BT: Tensor, token_count: int) -> Tensor:
    """This micro-batch's part of the mean over all tokens of the batch."""
    return masked_row_sums(values_BT, mask_BT).sum() / token_count
