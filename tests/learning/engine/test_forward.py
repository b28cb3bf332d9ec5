"""Forward passes over given completions: packing, padding, parts, chunks and odd heads change neither values nor gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rl_swarm.learning.engine import attention, forward
from rl_swarm.learning.engine.architecture import has_plain_head, packed_decoder
from rl_swarm.learning.engine.attention import LEAST_SHARED, HostedDecoder, shared_start
from rl_swarm.learning.engine.forward import PackedReader, PaddedReader, Passage, Reader, make_reader, packed_cut, padded_cut
from rl_swarm.learning.engine.lean import LARGE_WEIGHT, LeanDecoder, product
from rl_swarm.learning.policy import Policy
from tests.support.tiny_models import policy

PASSAGES = [
    Passage((1, 2, 3, 4, 5, 6, 7), (8, 9)),
    Passage((3, 1), (4, 1, 5, 9, 2, 6)),
    Passage((2, 7, 1), (8,)),
    Passage((3, 1), (9, 9, 4)),
    Passage((2, 7, 1), (5, 5, 5, 0)),
    Passage((3, 1), (6,)),
]
WEIGHTS = torch.tensor([1.0, -0.5, 2.0, 0.3, -1.0, 0.7])
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gpt2"]


def alone(made: Policy, passage: Passage) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies by the textbook: one passage, no padding, all logits."""
    ids = torch.tensor([passage.prompt_ids + passage.completion_ids])
    logprobs = torch.log_softmax(made.model(input_ids=ids).logits[0] / made.temperature, dim=-1)[len(passage.prompt_ids) - 1 : -1]
    return logprobs.gather(-1, torch.tensor(passage.completion_ids)[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def packed(made: Policy) -> Reader:
    assert made.decoder is not None
    return PackedReader(made.model, made.temperature, made.decoder)


def padded(made: Policy) -> Reader:
    return PaddedReader(made.model, made.temperature, made.pad_id)


def read(reader: Reader, token_budget: int = 1 << 16) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Log-probabilities and entropies by passage, without their padding, after going backward through every part."""
    found = {}
    for rows, reading in reader.parts(PASSAGES, token_budget):
        (reading.logprobs_BT * reading.mask_BT * WEIGHTS[rows].unsqueeze(1)).sum().backward()
        for place, row in enumerate(rows):
            length = len(PASSAGES[row].completion_ids)
            assert reading.mask_BT[place].tolist() == [1.0] * length + [0.0] * (reading.mask_BT.shape[1] - length)
            assert not reading.logprobs_BT[place, length:].any()
            assert not reading.entropies_BT.requires_grad
            found[row] = (reading.logprobs_BT[place, :length].detach(), reading.entropies_BT[place, :length])
    assert sorted(found) == list(range(len(PASSAGES)))
    return found


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_hosted_layers_give_the_same(architecture: str) -> None:
    lean, hosted = policy(architecture), policy(architecture)
    assert isinstance(lean.decoder, LeanDecoder)
    hosted.decoder = HostedDecoder(hosted.model.base_model)
    found, expected = read(packed(lean)), read(packed(hosted))
    for row in found:
        torch.testing.assert_close(found[row], expected[row], rtol=0, atol=1e-5)
    for (name, one), other in zip(lean.model.named_parameters(), hosted.model.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 1e-5 * max(1.0, other.grad.norm()), name


@pytest.mark.parametrize(("token_budget", "logit_values"), [(1 << 16, 1), (16, 1 << 26), (1, 1 << 26)])
@pytest.mark.parametrize("reader_of", [packed, padded])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reading_and_gradient_are_those_of_each_passage_alone(
    architecture: str, reader_of: Callable[[Policy], Reader], token_budget: int, logit_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LOGIT_VALUES", logit_values)
    check_against_the_textbook(architecture, reader_of, token_budget)


@pytest.mark.parametrize("token_budget", [1 << 16, 16, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_long_completions_are_read_alike(architecture: str, token_budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FEW_PAIRS", 0)
    check_against_the_textbook(architecture, packed, token_budget)


@pytest.mark.parametrize("token_budget", [1 << 16, 24, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_that_begin_alike_are_read_alike(architecture: str, token_budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LEAST_SHARED", 3)
    begun = [Passage((9, 8, 7, 6, *passage.prompt_ids), passage.completion_ids) for passage in PASSAGES]
    monkeypatch.setitem(globals(), "PASSAGES", begun)
    assert shared_start([passage.prompt_ids for passage in begun]) == 4
    check_against_the_textbook(architecture, packed, token_budget)


def check_against_the_textbook(architecture: str, reader_of: Callable[[Policy], Reader], token_budget: int) -> None:
    made, textbook = policy(architecture, temperature=0.7), policy(architecture, temperature=0.7)
    found = read(reader_of(made), token_budget)
    for row, passage in enumerate(PASSAGES):
        logprobs, entropies = alone(textbook, passage)
        (WEIGHTS[row] * logprobs.sum()).backward()
        torch.testing.assert_close(found[row][0], logprobs.detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(found[row][1], entropies.detach(), rtol=0, atol=1e-5)
    for (name, one), other in zip(made.model.named_parameters(), textbook.model.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 1e-5 * max(1.0, other.grad.norm()), name


def test_a_frozen_part_gets_no_gradient() -> None:
    made = policy()
    made.model.get_input_embeddings().weight.requires_grad_(False)
    read(packed(made))
    assert made.model.get_input_embeddings().weight.grad is None
    assert made.model.base_model.layers[0].self_attn.k_proj.weight.grad.abs().max() > 0


def test_reading_without_gradients() -> None:
    made = policy()
    with torch.no_grad():
        parts = list(packed(made).parts(PASSAGES, 16))
    assert not any(reading.logprobs_BT.requires_grad for _, reading in parts)


def test_every_prompt_goes_through_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    passages = [Passage((1, 2, 3, 4, 5), (6, 7)), Passage((1, 2, 3, 4, 5), (7, 8, 9)), Passage((2, 3), (4,))]
    seen = []
    compute = LeanDecoder.__call__

    def watched(self: LeanDecoder, embedded: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(embedded))
        return compute(self, embedded, *rest)

    monkeypatch.setattr(LeanDecoder, "__call__", watched)
    assert len(list(packed(made).parts(passages, 100))) == 1
    assert seen == [10], "7 prompt tokens and the 3 completion tokens that predict another, in one pass"
    seen.clear()
    twice = [Passage((1, 2, 3), (4, 5, 6)), Passage((1, 2, 3), (6, 5, 4))]
    assert len(list(packed(made).parts(twice, 6))) == 2
    assert seen == [3, 2, 2], "the prompt, then the completions in two parts"
    seen.clear()
    start = tuple([1, 2] * LEAST_SHARED)
    alike = [Passage((*start, 3, 4), (5,)), Passage((*start, 4), (5, 6)), Passage((*start, 4), (6, 7, 8))]
    enough = 2 * (len(start) + 2 + 1)  # half of it is for prompts
    assert len(list(packed(made).parts(alike, enough))) == 1
    assert seen == [len(start) + 2 + 1 + 3], "what the prompts begin with, the rest of each, and 3 completion tokens"
    assert len(list(packed(made).parts(alike, enough - 1))) == 2, "one prompt after the other"


@pytest.mark.parametrize("rows", [1, 15, 16, 256, 257])
def test_a_product_of_few_rows_and_a_large_weight_is_the_same_the_other_way_round(rows: int) -> None:
    layer, values = torch.nn.Linear(LARGE_WEIGHT // 250, 250, bias=False), torch.randn(rows, LARGE_WEIGHT // 250)
    with torch.no_grad():
        torch.testing.assert_close(product(values, layer), layer(values), rtol=1e-5, atol=1e-5)


def test_gradients_of_several_parts_add_up_where_they_are_kept() -> None:
    layer = torch.nn.Linear(3, 2)
    first, second = torch.randn(4, 3), torch.randn(5, 3, requires_grad=True)
    product(first, layer).sum().backward()
    kept = layer.weight.grad
    product(second, layer).square().sum().backward()
    assert layer.weight.grad is kept
    found, inner = [kept.clone(), layer.bias.grad.clone()], second.grad.clone()
    layer.zero_grad()
    second.grad = None
    (layer(first).sum() + layer(second).square().sum()).backward()
    for one, other in zip([*found, inner], [layer.weight.grad, layer.bias.grad, second.grad], strict=True):
        torch.testing.assert_close(one, other)


def test_cut() -> None:
    long, short = Passage((1,) * 30, (2,) * 4), Passage((3,) * 10, (2,) * 6)
    passages = [short, long, short, long, short]
    # Budget 40: 20 tokens of prompts at most together, or one prompt; then what is left for completions.
    assert packed_cut(passages, 40) == [([(1,) * 30], [[1, 3]]), ([(3,) * 10], [[0, 2, 4]])]
    assert packed_cut(passages, 100) == [([(1,) * 30, (3,) * 10], [[0, 2, 4, 1, 3]])]
    assert packed_cut(passages, 1) == [([(1,) * 30], [[1], [3]]), ([(3,) * 10], [[0], [2], [4]])]
    uneven = [Passage((1,), (2,) * length) for length in (20, *[1] * 30)]
    assert max(len(part) for _, parts in packed_cut(uneven, 41) for part in parts) <= 30
    lengths = [5, 30, 12, 12, 7, 100]
    rows = [Passage((1,) * (length - 1), (2,)) for length in lengths]
    assert padded_cut(rows, 36) == [[5], [1], [2, 3, 4], [0]]
    assert padded_cut(rows, 1) == [[5], [1], [2], [3], [4], [0]]


def test_architectures_that_pack() -> None:
    for architecture in ARCHITECTURES:
        made = policy(architecture)
        assert isinstance(made.decoder, HostedDecoder if architecture == "gpt2" else LeanDecoder)


@pytest.mark.parametrize("reason", ["sliding window", "capped head"])
def test_what_cannot_be_packed_is_noticed(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy("qwen2")
    attentions = [layer.self_attn for layer in made.model.base_model.layers]
    if reason == "sliding window":
        monkeypatch.setattr(attentions[1], "sliding_window", 8)
    else:
        capped(made, takes_logits_to_keep=True)
    assert packed_decoder(made.model, made.end_id) is None
    assert isinstance(make_reader(made.model, None, made.temperature, made.pad_id), PaddedReader)


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
def test_a_head_that_is_more_than_a_matrix_is_asked_itself(takes_logits_to_keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LOGIT_VALUES", 1)
    made = capped(policy(), takes_logits_to_keep=takes_logits_to_keep)
    assert has_plain_head(policy().model, 0)
    assert not has_plain_head(made.model, 0)
    found = read(padded(made))
    for row, passage in enumerate(PASSAGES):
        torch.testing.assert_close(found[row][0], alone(made, passage)[0].detach(), rtol=0, atol=1e-5)
