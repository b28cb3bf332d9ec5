"""Every function of grpo.py against values computed by hand."""

import math

import pytest
import torch

from rl_swarm.learning import grpo

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


MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
VALUES = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]])


def test_masked_row_sums() -> None:
    assert grpo.masked_row_sums(VALUES, MASK).tolist() == [3.0, 3.0]


def test_token_loss() -> None:
    logprobs, advantages = torch.full((2, 3), -1.0, requires_grad=True), torch.tensor([2.0, -3.0])
    loss = grpo.token_loss(logprobs, advantages, torch.tensor([1.0, 0.5]), MASK, 3)
    assert loss.item() == pytest.approx(-5 / 6)  # -(1 · 2 tokens · 2 - 0.5 · 1 token · 3) / 3 tokens
    loss.backward()
    close(logprobs.grad, [[-2 / 3, -2 / 3, 0.0], [0.5, 0.0, 0.0]])  # -weight · advantage / 3 tokens, none on padding


def test_parts_of_a_loss_add_up() -> None:
    advantages, ones = torch.tensor([2.0, -3.0]), torch.ones(2)
    parts = [grpo.token_loss(*(each[row : row + 1] for each in (VALUES, advantages, ones, MASK)), 3).item() for row in (0, 1)]
    assert sum(parts) == pytest.approx(grpo.token_loss(VALUES, advantages, ones, MASK, 3).item())


def test_token_mean() -> None:
    assert grpo.token_mean(VALUES, MASK, 3).item() == pytest.approx(2.0)
    assert grpo.token_mean(VALUES[:1], MASK[:1], 3).item() == pytest.approx(1.0)
