"""The paired permutation test, and the sentence that it allows.

Two arms are compared on the same seeds. If the arm made no difference, the difference of each seed could as well have the other
sign: the p-value is the share of all sign patterns that give a mean difference at least as far from zero. No distribution is
assumed. With few pairs the test cannot say much, and the sentence says so.
"""

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean, stdev

from rl_swarm.randomness import generator
from rl_swarm.text import counted

SIGNIFICANT = 0.05
MOST_EXACT = 16  # pairs up to which every sign pattern is tried
DRAWN = 100_000
# Quantiles of Student's distribution at 97.5 %, by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 11: 2.20, 12: 2.18}


def permutation_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of paired differences: exact up to 16 pairs, beyond that from patterns of a fixed generator."""
    if not differences:
        return 1.0
    # Sums of the same terms in another order differ by rounding, and must count as equal.
    observed = abs(sum(differences)) * (1 - 1e-9) - 1e-12
    if len(differences) <= MOST_EXACT:
        patterns = product((1, -1), repeat=len(differences))
        return fmean(abs(sum(sign * each for sign, each in zip(signs, differences, strict=True))) >= observed for signs in patterns)
    chance = generator("permutation", len(differences))
    hits = sum(abs(sum(each if chance.random() < 0.5 else -each for each in differences)) >= observed for _ in range(DRAWN))
    return (hits + 1) / (DRAWN + 1)


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean of paired differences; None for a single pair."""
    count = len(differences)
    if count < 2:
        return None
    reach = STUDENT.get(count - 1, 2.17 if count < 31 else 2.05 if count < 61 else 2.0) * stdev(differences) / math.sqrt(count)
    return fmean(differences) - reach, fmean(differences) + reach


def least_p(pairs: int) -> float:
    """The smallest p-value that so many pairs can give: all differences of one sign."""
    return 2.0 ** (1 - pairs) if pairs <= MOST_EXACT else 1 / (DRAWN + 1)


def verdict(head: str, differences: Sequence[float], what: str = "sharing") -> str:
    """One sentence about paired differences of which `head` tells the size: how sure it is that `what` made them."""
    p, least = permutation_p(differences), least_p(len(differences))
    if len(differences) == 1:
        return f"{head}, on one seed: that is no proof."
    better = sum(each > 0 for each in differences)
    head = f"{head}, better on {better} of {counted(len(differences), 'seed')}, p = {p:.4f}"
    if p < SIGNIFICANT:
        return f"{head}: {what} {'helped' if sum(differences) > 0 else 'hurt'}."
    if least >= SIGNIFICANT:
        pairs = counted(len(differences), "pair")
        return f"{head}; {pairs} cannot give less than {least:.2f}, so this test proves nothing either way."
    return f"{head}: no difference that chance would not explain."
