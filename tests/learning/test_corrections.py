"""Which external completions count, and how much, against values computed by hand."""

import math

import pytest
import torch

from rl_swarm.config import load
from rl_swarm.learning.corrections import Correction, Guarded, ScoredPassage, Topr, claimed_logprob, make_correction
from rl_swarm.learning.engine.forward import Reading
from rl_swarm.rollout import Completion
from tests.learning.test_grpo import LN2, LN4, close


def passage(advantage: float = 1.0, claim: float | None = None, *, external: bool = True, whole: bool = True) -> ScoredPassage:
    completion = Completion("ab", logprob=claim, token_ids=() if external else (1,))
    return ScoredPassage((0,), (1,), completion, advantage, whole)


def reading(logprobs: object, entropies: object = None, mask: object = None) -> Reading:
    logprobs_BT = torch.tensor(logprobs, requires_grad=True)
    entropies_BT = torch.zeros_like(logprobs_BT) if entropies is None else torch.tensor(entropies)
    return Reading(logprobs_BT, entropies_BT, torch.ones_like(logprobs_BT) if mask is None else torch.tensor(mask))


def test_no_correction_counts_everything() -> None:
    wrong, cut, own = passage(-1.0), passage(whole=False), passage(external=False)
    assert all(Correction().may_count(each) and not Correction().known_zero(each) for each in (wrong, cut, own))
    assert Correction().weights([wrong, cut, own], reading([[-1e4]] * 3)).tolist() == [1.0, 1.0, 1.0]


def test_the_guard_needs_a_positive_advantage_and_the_whole_text() -> None:
    guard = Guarded(55)
    assert [guard.may_count(passage(advantage)) for advantage in (1.0, 0.0, -1.0)] == [True, False, False]
    assert [guard.known_zero(passage(whole=whole)) for whole in (True, False)] == [False, True]
    own = passage(-1.0, external=False, whole=False)
    assert guard.may_count(own) and not guard.known_zero(own)


@pytest.mark.parametrize(
    ("claim", "expected"),
    [(-3.5, -3.5), (0.0, 0.0), (-60.0, -60.0), (-60.1, 0.0), (0.1, 0.0), (None, 0.0)]
    + [(bad, 0.0) for bad in (math.nan, math.inf, -math.inf, -1e300)],
)
def test_claimed_logprob(claim: float | None, expected: float) -> None:
    """Two bytes are at most three tokens, the end token included, of 20 nats each."""
    assert claimed_logprob(passage(claim=claim)) == expected
    assert claimed_logprob(passage(claim=claim, whole=False)) == 0.0, "the claim is about a longer text"


def test_topr_weights() -> None:
    """π/μ = 1/2; a positive advantage: 1; without padding: 1/4; π far above μ: clipped to 1; own: 1."""
    logprobs = [[-1.0, -1.0], [-1.0, -1.0], [-3.0, -9.0], [-1.0, -1.0], [-1.0, -1.0]]
    mask = [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    claims = [(-1.0, -2.0 + LN2), (1.0, 0.0), (-1.0, -3.0 + LN4), (-1.0, -50.0)]
    passages = [*(passage(*each) for each in claims), passage(-1.0, 0.0, external=False)]
    weights = Topr().weights(passages, reading(logprobs, mask=mask))
    close(weights, [0.5, 1.0, 0.25, 1.0, 1.0])
    assert not weights.requires_grad


def test_topr_weights_that_vanish_are_zero() -> None:
    """exp(-15) is 3.1e-7, above the 1.2e-7 that 1 can be told from in fp32; exp(-17) is 4.1e-8."""
    weights = Topr().weights([passage(-1.0, 0.0)] * 2, reading([[-15.0], [-17.0]]))
    assert weights[0].item() == pytest.approx(math.exp(-15), rel=1e-5) and weights[1].item() == 0.0


@pytest.mark.parametrize("logprob", [-1e4, 0.0])
def test_topr_weights_stay_in_bounds_for_any_claim(logprob: float) -> None:
    claims = (math.nan, math.inf, -math.inf, None, 1e9, -1e9, -60.0, -0.0)
    weights = Topr().weights([passage(-1.0, claim) for claim in claims], reading([[logprob]] * len(claims)))
    assert all(0.0 <= weight <= 1.0 for weight in weights.tolist())


def test_plausible_completions_count() -> None:
    """A blind guess among 55 tokens costs 4.007 nats. A token surprises by its cost beyond 2.004 nats and the entropy at its place;
    short completions may hold half a guess of surprise."""
    rows = {
        "likely": ([-1.0, -2.0, -2.0], 0.0, True, 1.0),
        "one turn off the path": ([-1.0, -4.0, -1.0], 0.0, True, 1.0),
        "one turn too far": ([-1.0, -4.1, -1.0], 0.0, True, 0.0),
        "no further than expected there": ([-1.0, -4.1, -1.0], 0.2, True, 1.0),
        "three turns, likely on average": ([-2.7, -2.7, -2.7], 0.0, True, 0.0),
        "padding left out": ([-1.0, -2.0, -99.0], 0.0, True, 1.0),
        "own, whatever it is": ([-9.0, -9.0, -9.0], 0.0, False, 1.0),
    }
    logprobs, entropies, external, expected = zip(*rows.values(), strict=True)
    mask = [[float(value != -99.0) for value in row] for row in logprobs]
    passages = [passage(external=each) for each in external]
    weights = Guarded(55).weights(passages, reading(logprobs, [[each] * 3 for each in entropies], mask))
    close(weights, list(expected))
    assert not weights.requires_grad


def test_longer_completions_may_surprise_more_often() -> None:
    guess = math.log(1000)
    for tokens, turns, weight in ((8, 1, 1.0), (8, 2, 0.0), (32, 2, 1.0), (32, 3, 0.0), (128, 8, 1.0), (128, 9, 0.0)):
        # Each turn is a hair less than half a guess of surprise.
        logprobs = [-guess * 0.999] * turns + [-guess / 2] * (tokens - turns)
        close(Guarded(1000).weights([passage()], reading([logprobs])), [weight])


@pytest.mark.parametrize(("name", "kind"), [("guarded", Guarded), ("topr", Topr), ("none", Correction)])
def test_every_choice_of_the_setting_is_a_correction(name: str, kind: type[Correction]) -> None:
    assert type(make_correction(load({"EXTERNAL_CORRECTION": name}).correction, 55)) is kind
