"""The forward pass over given completions: padding, chunks and odd heads change nothing."""

import pytest
import torch

from rl_swarm.forward import PaddedReader, Passage, has_plain_head
from rl_swarm.policy import Policy
from tests.tiny_models import policy

PASSAGES = [
    Passage((1, 2, 3, 4, 5, 6, 7), (8, 9)),
    Passage((3, 1), (4, 1, 5, 9, 2, 6)),
    Passage((2, 7, 1), (8,)),
]
ARCHITECTURES = ["llama", "qwen2", "gpt2"]


def alone(made: Policy, passage: Passage) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies by the textbook: one passage, no padding, all logits."""
    ids = torch.tensor([passage.prompt_ids + passage.completion_ids])
    logprobs = torch.log_softmax(made.model(input_ids=ids).logits[0] / made.temperature, dim=-1)[len(passage.prompt_ids) - 1 : -1]
    return logprobs.gather(-1, torch.tensor(passage.completion_ids)[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("logit_values", [1 << 26, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reading_is_that_of_each_passage_alone(architecture: str, logit_values: int) -> None:
    made = policy(architecture, temperature=0.7)
    reading = PaddedReader(made, logit_values).read(made.model, PASSAGES)
    assert reading.mask_BT.tolist() == [[1, 1, 0, 0, 0, 0], [1] * 6, [1, 0, 0, 0, 0, 0]]
    for row, passage in enumerate(PASSAGES):
        length = len(passage.completion_ids)
        logprobs, entropies = alone(made, passage)
        torch.testing.assert_close(reading.logprobs_BT[row, :length], logprobs, rtol=0, atol=1e-5)
        torch.testing.assert_close(reading.entropies_BT[row, :length], entropies.detach(), rtol=0, atol=1e-5)
        assert not reading.logprobs_BT[row, length:].any()
    assert not reading.entropies_BT.requires_grad


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_give_the_same_gradient(architecture: str) -> None:
    gradients = []
    for logit_values in (1 << 26, 1):
        made = policy(architecture)
        PaddedReader(made, logit_values).read(made.model, PASSAGES).logprobs_BT.sum().backward()
        gradients.append([parameter.grad for parameter in made.model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-5)


def capped(made: Policy, *, takes_logits_to_keep: bool) -> Policy:
    """Give the model a head that caps its logits, as some architectures do."""
    forward = made.model.forward

    def with_cap(input_ids, attention_mask=None, position_ids=None, use_cache=None, logits_to_keep=0):
        inputs = {"attention_mask": attention_mask, "position_ids": position_ids, "logits_to_keep": logits_to_keep}
        output = forward(input_ids=input_ids, use_cache=use_cache, **inputs)
        output.logits = 2 * torch.tanh(output.logits / 2)
        return output

    def without_choice(input_ids, attention_mask=None, position_ids=None, use_cache=None):
        return with_cap(input_ids, attention_mask, position_ids, use_cache)

    made.model.forward = with_cap if takes_logits_to_keep else without_choice
    return made


@pytest.mark.parametrize("takes_logits_to_keep", [True, False])
def test_a_head_that_is_more_than_a_matrix_is_asked_itself(takes_logits_to_keep: bool) -> None:
    made = capped(policy(), takes_logits_to_keep=takes_logits_to_keep)
    assert has_plain_head(policy().model, 0)
    assert not has_plain_head(made.model, 0)
    reading = PaddedReader(made, 1).read(made.model, PASSAGES)
    for row, passage in enumerate(PASSAGES):
        torch.testing.assert_close(
            reading.logprobs_BT[row, : len(passage.completion_ids)], alone(made, passage)[0], rtol=0, atol=1e-5
        )
