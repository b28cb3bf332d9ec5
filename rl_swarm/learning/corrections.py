"""Which external completions count in an update, and how much: the choices of EXTERNAL_CORRECTION.

External completions are off-policy, and strangers wrote them. Own completions always count in full. Shapes are as in `grpo.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_swarm.learning.engine.forward import Passage, Reading
from rl_swarm.learning.grpo import masked_row_sums
from rl_swarm.learning.trust import Trust
from rl_swarm.rollout import Completion

MOST_NATS_PER_TOKEN = 20.0  # a uniform choice among 485 million tokens: nobody samples below that on average
TOKENS_A_GUESS = 32  # allows 0.34 nats of surprise a token; SmolLM2-135M's own samples hold 0.08
VANISHING = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class ScoredPassage(Passage):
    """A completion to train on. One that is not `whole` was longer than this policy ever writes, and had to be cut."""

    completion: Completion
    advantage: float
    whole: bool
    author: str = ""

    @property
    def external(self) -> bool:
        """Peers share text, so only own completions have token ids."""
        return not self.completion.token_ids


class Correction:
    """`none`, the paper's rule: external completions count like own ones. `trust` says what is known about their authors."""

    def __init__(self) -> None:
        self.trust = Trust()

    def may_count(self, passage: ScoredPassage) -> bool:
        """Whether the passage might count at all."""
        return True

    def known_zero(self, passage: ScoredPassage) -> bool:
        """Whether a passage that might count is known to have weight 0 without a forward pass."""
        return False

    def weights(self, passages: Sequence[ScoredPassage], reading: Reading) -> Tensor:
        """The weight of each passage, within [0, 1] and without a gradient."""
        external_B = reading.mask_BT.new_tensor([passage.external for passage in passages]).bool()
        with torch.no_grad():
            return torch.where(external_B, self._external_weights(passages, reading), 1.0)

    def _external_weights(self, passages: Sequence[ScoredPassage], reading: Reading) -> Tensor:
        return reading.mask_BT.new_ones(len(passages))


class Topr(Correction):
    """Tapered off-policy REINFORCE (arXiv:2503.14286 §3): weight clip(π(y)/μ(y), 0, 1) for completions with a negative advantage.

    A completion that this policy would hardly write needs no pushing down. Weights that vanish beside 1 in fp32 are 0.
    """

    def _external_weights(self, passages: Sequence[ScoredPassage], reading: Reading) -> Tensor:
        mu_logprobs_B = reading.mask_BT.new_tensor([claimed_logprob(passage) for passage in passages])
        advantages_B = reading.mask_BT.new_tensor([passage.advantage for passage in passages])
        log_ratio_B = masked_row_sums(reading.logprobs_BT, reading.mask_BT) - mu_logprobs_B
        tapered_B = torch.exp(log_ratio_B.clamp(max=0.0))
        tapered_B = tapered_B.masked_fill(tapered_B < VANISHING, 0.0)
        return torch.where(advantages_B < 0, tapered_B, 1.0)


def claimed_logprob(passage: ScoredPassage) -> float:
    """The author's log-probability of its completion, or 0.0 (probability one) where the claim cannot be true.

    A claim is not believed if it is missing, not finite, positive, too low for any tokenizer, or about a longer text than is
    trained on. No probability is larger than one, so 0.0 gives the smallest weight of any honest claim.
    """
    claim = passage.completion.logprob
    most_tokens = len(passage.completion.text.encode()) + 1  # no tokenizer makes more tokens than bytes, the end token aside
    if claim is None or not passage.whole or not -MOST_NATS_PER_TOKEN * most_tokens <= claim <= 0:
        return 0.0
    return float(claim)


class Guarded(Correction):
    """Weight 1 for completions that have a positive advantage, are whole, are plausible to this policy, and whose author it trusts.
    Believes no claim.

    External completions never teach what to avoid: crafted text would have good things avoided. One that had to be cut teaches
    nothing: its reward may be for the part that is missing. An author of absurd text teaches nothing at all: the few completions
    that pass would make the others plausible in the end.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def may_count(self, passage: ScoredPassage) -> bool:
        return not passage.external or passage.advantage > 0

    def known_zero(self, passage: ScoredPassage) -> bool:
        return passage.external and not passage.whole

    def _external_weights(self, passages: Sequence[ScoredPassage], reading: Reading) -> Tensor:
        """1, or 0 for a completion that this policy finds absurd, or whose author has lost its trust.

        A token's surprise is the amount by which -log π exceeds the entropy at its place plus half of a blind guess among the whole
        vocabulary. A completion is absurd if its surprises add up to more than one blind guess for every `TOKENS_A_GUESS` tokens,
        or half a guess if it is short. So an honest peer's better idea passes, and a right answer wrapped in text that nobody
        should learn to write does not. Surprises are summed, not averaged: likely phrases as padding would lower a mean.
        """
        guess = math.log(self.vocabulary)
        surprises_BT = (-reading.logprobs_BT - reading.entropies_BT - guess / 2).clamp(min=0)
        allowed_B = guess * (reading.mask_BT.sum(-1) / TOKENS_A_GUESS).clamp(min=0.5)
        plausible_B = masked_row_sums(surprises_BT, reading.mask_BT) <= allowed_B
        for passage, plausible in zip(passages, plausible_B.tolist(), strict=True):
            if passage.external:
                self.trust.note(passage.author, plausible)
        trusted_B = reading.mask_BT.new_tensor([self.trust.trusted(passage.author) for passage in passages])
        return plausible_B * trusted_B


def make_correction(name: str, vocabulary: int) -> Correction:
    return {"guarded": Guarded(vocabulary), "topr": Topr(), "none": Correction()}[name]
