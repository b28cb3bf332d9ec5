"""Every function of grpo.py against values computed by hand."""

import math

import pytest
import torch

from rl_swarm.learning import grpo
from rl_swarm.learning.engine import logits as logits_of

LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)


def close(actual: torch.Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def test_group_advantages() -> None:
    close(grpo.group_advantages(torch.tensor([0.0, 1.0])), [-1.0, 1.0])
    # mean 0.25, population variance (3 · 0.0625 + 0.5625) / 4 = 0.1875
    std = math.sqrt(0.1875)
    close(grpo.group_advantages(torch.tensor([0.0, 0.0, 0.0, 1.0])), [-0.25 / std] * 3 + [0.75 / std])
    close(grpo.group_advantages(torch.tensor([0.3, 0.3, 0.3])), [0.0, 0.0, 0.0])


def test_the_largest_advantage_is_the_root_of_the_group_size_less_one() -> None:
    assert grpo.group_advantages(torch.tensor([1.0] + [0.0] * 9))[0].item() == pytest.approx(3.0)


def test_next_token_probs() -> None:
    logits = torch.tensor([[0.0, LN3], [0.0, 0.0]])
    close(logits_of.next_token_probs(logits, 1.0), [[0.25, 0.75], [0.5, 0.5]])
    # At temperature 1/2 the odds are squared: 1 to 9.
    close(logits_of.next_token_probs(logits, 0.5)[0], [0.1, 0.9])


def test_probabilities_are_in_single_precision_whatever_the_model_computes_in() -> None:
    assert logits_of.next_token_probs(torch.zeros(1, 3, dtype=torch.float16), 1.0).dtype == torch.float32
    logprobs, entropies = logits_of.read_logits(torch.zeros(1, 3, dtype=torch.float16), torch.tensor([0]), 1.0)
    assert logprobs.dtype == entropies.dtype == torch.float32


def test_chosen() -> None:
    close(logits_of.chosen(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([1, 0])), [-2.0, -3.0])


def test_read_logits() -> None:
    logits = torch.tensor([[0.0, LN3], [0.0, 0.0], [1.0, -math.inf]])
    logprobs, entropies = logits_of.read_logits(logits.clone(), torch.tensor([0, 1, 0]), 1.0)
    close(logprobs, [-LN4, -LN2, 0.0])
    close(entropies, [0.25 * LN4 + 0.75 * (LN4 - LN3), LN2, 0.0])
    close(logits_of.read_logits(logits.clone(), torch.tensor([1, 1, 0]), 0.5)[0], [math.log(0.9), -LN2, 0.0])


@pytest.mark.parametrize("cached_values", [1 << 18, 5])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_read_logits_has_the_textbook_gradient(temperature: float, cached_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logits_of, "CACHED_VALUES", cached_values)
    generator = torch.Generator().manual_seed(0)
    logits, weights = torch.randn(7, 5, generator=generator), torch.randn(7, generator=generator)
    ids = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    plain, own = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    textbook = torch.log_softmax(plain / temperature, dim=-1).gather(-1, ids[:, None])[:, 0]
    logprobs, entropies = logits_of.read_logits(own * 1, ids, temperature)  # a product, since the logits are used up
    close(logprobs, textbook.tolist())
    assert not entropies.requires_grad
    (textbook * weights).sum().backward()
    (logprobs * weights).sum().backward()
    torch.testing.assert_close(own.grad, plain.grad, rtol=0, atol=1e-6)


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([[0.25, 0.25, 0.5]]).expand(5, 3)
    uniforms = torch.tensor([0.0, 0.2499, 0.26, 0.51, 0.999999], dtype=torch.float64)
    assert logits_of.draw(probs, uniforms, 1.0).tolist() == [0, 0, 1, 2, 2]


def test_draw_never_takes_what_has_no_probability() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(3, 5)
    uniforms = torch.tensor([0.0, 0.5, 1 - 1e-16], dtype=torch.float64)
    assert logits_of.draw(probs, uniforms, 1.0).tolist() == [1, 3, 3]


def test_draw_within_the_nucleus() -> None:
    # Of 0.5, 0.3, 0.2 the first two hold 0.7, and share the unit interval as 5 to 3.
    probs = torch.tensor([[0.2, 0.5, 0.3]]).expand(3, 3)
    assert logits_of.draw(probs, torch.tensor([0.0, 0.62, 0.63], dtype=torch.float64), 0.7).tolist() == [1, 1, 2]


def test_draw_follows_the_distribution() -> None:
    probs = torch.tensor([0.6, 0.3, 0.1])
    uniforms = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = logits_of.draw(probs.expand(20_000, 3), uniforms, 1.0)
    torch.testing.assert_close(torch.bincount(drawn) / 20_000, probs, rtol=0, atol=0.01)


def test_draw_inverts_the_cumulative_distribution_over_several_blocks() -> None:
    probs = torch.rand(1, 1000, generator=torch.Generator().manual_seed(1)) ** 4
    probs[0, 300:600] = 0
    probs /= probs.sum()
    uniforms = torch.linspace(0, 1, 4001, dtype=torch.float64)[:-1]
    sums = probs[0].double().cumsum(0)
    expected = torch.searchsorted(sums, uniforms * sums[-1], right=True)
    drawn = logits_of.draw(probs.expand(4000, 1000), uniforms, 1.0)
    assert (probs[0, drawn] > 0).all()
    assert (drawn != expected).float().mean() < 0.002, "they part only where a number falls on a boundary, by rounding"


def test_nucleus() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    close(logits_of.nucleus(probs, 0.7), [[0.0, 0.5, 0.3], [0.0, 0.0, 0.8]])
    close(logits_of.nucleus(probs, 0.1), [[0.0, 0.5, 0.0], [0.0, 0.0, 0.8]])


def test_ratios() -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    close(grpo.ratios(logprobs, torch.tensor([[-1.0 - LN2, -2.0 + LN4]])), [[2.0, 0.25]])
    alone = grpo.ratios(logprobs, None)
    assert alone.tolist() == [[1.0, 1.0]]
    alone.sum().backward()
    assert logprobs.grad.tolist() == [[1.0, 1.0]]  # d e^(x - c) / dx at x = c


RATIOS = torch.tensor([[0.5, 1.0, 1.2, 2.0]]).expand(2, 4)
ADVANTAGES = torch.tensor([2.0, -1.0])


def test_clipped_objective() -> None:
    expected = [[1.0, 2.0, 2.4, 2.56], [-0.8, -1.0, -1.2, -2.0]]  # bounds 0.8 and 1.28
    close(grpo.clipped_objective(RATIOS, ADVANTAGES, 0.2, 0.28), expected)


def test_clipped_tokens_are_those_without_gradient() -> None:
    assert grpo.clipped(RATIOS, ADVANTAGES, 0.2, 0.28).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    ratios = RATIOS.clone().requires_grad_()
    grpo.clipped_objective(ratios, ADVANTAGES, 0.2, 0.28).sum().backward()
    assert (ratios.grad == 0).float().tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("claim", "expected"),
    [(-3.5, -3.5), (0.0, 0.0), (-60.0, -60.0), (-60.1, 0.0), (0.1, 0.0), (None, 0.0)]
    + [(bad, 0.0) for bad in (math.nan, math.inf, -math.inf, -1e300)],
)
def test_credible_logprob(claim: float | None, expected: float) -> None:
    assert grpo.credible_logprob(claim, most_tokens=3) == expected


def test_topr_weights() -> None:
    logprobs = torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [-1.0, -9.0], [-1.0, -1.0], [-1.0, -1.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0, -1.0])
    external = torch.tensor([True, True, True, True, False])
    mu = torch.tensor([-2.0 + LN2, 0.0, -1.0 + LN4, -1000.0, 0.0])
    # π/μ = 1/2; positive: 1; padding left out: 1/4; π far above μ: clipped to 1; own: 1
    weights = grpo.topr_weights(logprobs, mask, advantages, external, mu)
    close(weights, [0.5, 1.0, 0.25, 1.0, 1.0])
    assert not weights.requires_grad


def test_topr_weights_that_vanish_are_zero() -> None:
    """exp(-15) is 3.1e-7, above the 1.2e-7 that 1 can be told from in fp32; exp(-17) is 4.1e-8."""
    logprobs, external = torch.tensor([[-15.0], [-17.0]]), torch.ones(2, dtype=torch.bool)
    weights = grpo.topr_weights(logprobs, torch.ones(2, 1), -torch.ones(2), external, torch.zeros(2))
    assert weights[0].item() == pytest.approx(math.exp(-15), rel=1e-5) and weights[1].item() == 0.0


def test_topr_weights_stay_in_bounds_for_any_credible_claim() -> None:
    logprobs, mask = torch.full((3, 4), -1e4), torch.ones(3, 4)
    claims = torch.tensor([grpo.credible_logprob(claim, 4) for claim in (math.nan, -80.0, -0.0)])
    weights = grpo.topr_weights(logprobs, mask, -torch.ones(3), torch.ones(3, dtype=torch.bool), claims)
    assert all(0.0 <= weight <= 1.0 for weight in weights.tolist())


def test_plausible_weights() -> None:
    """Of 55 tokens a blind guess costs 4.007 nats. So a token surprises by what it costs beyond 2.004, and beyond what was to be
    expected there; short completions may hold half a guess of surprise."""
    rows = {
        "likely": ([-1.0, -2.0, -2.0], 0.0, True, 1.0),
        "one turn off the path": ([-1.0, -4.0, -1.0], 0.0, True, 1.0),
        "one turn too far": ([-1.0, -4.1, -1.0], 0.0, True, 0.0),
        "no further than expected there": ([-1.0, -4.1, -1.0], 0.2, True, 1.0),
        "three turns, likely on average": ([-2.7, -2.7, -2.7], 0.0, True, 0.0),
        "padding left out": ([-1.0, -2.0, -99.0], 0.0, True, 1.0),
        "own, whatever it is": ([-9.0, -9.0, -9.0], 0.0, False, 1.0),
    }
    logprobs = torch.tensor([row[0] for row in rows.values()], requires_grad=True)
    entropies = torch.tensor([[row[1]] * 3 for row in rows.values()])
    mask = torch.ones_like(logprobs).masked_fill(logprobs == -99.0, 0.0)
    external = torch.tensor([row[2] for row in rows.values()])
    weights = grpo.plausible_weights(logprobs, entropies, mask, external, vocabulary=55)
    close(weights, [row[3] for row in rows.values()])
    assert not weights.requires_grad


def test_longer_completions_may_surprise_more_often() -> None:
    guess = math.log(1000)
    for tokens, turns, weight in ((8, 1, 1.0), (8, 2, 0.0), (32, 2, 1.0), (32, 3, 0.0), (128, 8, 1.0), (128, 9, 0.0)):
        logprobs = torch.full((1, tokens), -guess / 2)
        logprobs[0, :turns] = -guess * 0.999  # each a hair less than half a guess of surprise
        expected, mask = torch.zeros_like(logprobs), torch.ones_like(logprobs)
        close(grpo.plausible_weights(logprobs, expected, mask, torch.tensor([True]), vocabulary=1000), [weight])


def test_kl_estimates() -> None:
    logprobs = torch.tensor([[-1.0, -1.0, -1.0, -50.0]], requires_grad=True)
    reference = torch.tensor([[-1.0, -1.0 + LN2, -1.0 - LN2, -1.0]])
    values = grpo.kl_estimates(logprobs, reference)
    close(values, [[0.0, 2 - LN2 - 1, 0.5 + LN2 - 1, math.exp(10) - 11]], tolerance=1e-2)  # the last gap is held at 10
    close(values[0, :3], [0.0, 1 - LN2, LN2 - 0.5])
    values.sum().backward()
    close(logprobs.grad, [[0.0, -1.0, 0.5, 0.0]])  # 1 - e^d; none beyond the bound


MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
VALUES = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]])


def test_masked_row_sums() -> None:
    assert grpo.masked_row_sums(VALUES, MASK).tolist() == [3.0, 3.0]


def test_token_loss() -> None:
    # -(1 · (1 + 2) + 0.5 · 3) / 3 tokens
    assert grpo.token_loss(VALUES, torch.tensor([1.0, 0.5]), MASK, 3).item() == pytest.approx(-1.5)
    parts = [grpo.token_loss(VALUES[row : row + 1], torch.ones(1), MASK[row : row + 1], 3).item() for row in (0, 1)]
    assert sum(parts) == pytest.approx(grpo.token_loss(VALUES, torch.ones(2), MASK, 3).item())


def test_token_mean() -> None:
    assert grpo.token_mean(VALUES, MASK, 3).item() == pytest.approx(2.0)
    assert grpo.token_mean(VALUES[:1], MASK[:1], 3).item() == pytest.approx(1.0)
