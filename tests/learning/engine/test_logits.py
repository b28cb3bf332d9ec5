"""From logits to tokens and log-probabilities, against values computed by hand."""

import math

import pytest
import torch

from rl_swarm.learning.engine import logits as logits_of
from tests.learning.test_grpo import LN2, LN3, LN4, close


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
