"""Attention over packed tokens: the ways to compute it agree, and so do their gradients."""

import pytest
import torch

from rl_swarm.learning.engine import attention
from rl_swarm.learning.engine.attention import LEAST_SHARED, Completions, Prompts, ShortCompletions, completions, shared_start
from rl_swarm.learning.engine.grid import Grid
from rl_swarm.learning.engine.lean import FrozenDecoder, LeanDecoder
from tests.support.tiny_models import policy

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [None, [2, 0, 3]])
def test_spreading_and_packing_are_each_others_way_back(rows: list[int] | None) -> None:
    grid = Grid([2, 3, 1], CPU, rows, None if rows is None else 5)
    packed = torch.randn(6, 2, dtype=torch.double, requires_grad=True)
    spread = grid.spread(packed)
    assert spread.shape == ((3, 3, 2) if rows is None else (5, 3, 2))
    assert torch.equal(grid.pack(spread), packed)
    assert torch.equal(spread[1 if rows is None else 0], packed[2:5]), "the second text, of three tokens, fills its row"
    assert not spread[~grid.filled].any()
    assert torch.autograd.gradcheck(grid.spread, packed)
    assert torch.autograd.gradcheck(grid.pack, torch.randn(spread.shape, dtype=torch.double, requires_grad=True))


def test_texts_of_one_length_are_spread_already() -> None:
    packed = torch.randn(6, 4)
    assert Grid([3, 3], CPU).spread(packed).data_ptr() == packed.data_ptr()
    assert torch.equal(Grid([3, 3], CPU, [1, 0], 2).spread(packed)[1], packed[:3]), "in another order they are not"


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(
    ("prompt_lengths", "lengths", "prompt_of"),
    [([3, 3], [2, 2, 2, 2], [0, 0, 1, 1]), ([5, 2, 3], [4, 1, 3, 2], [2, 0, 2, 2]), ([2], [3, 0, 1], [0, 0, 0])],
    ids=["even", "ragged", "one prompt"],
)
def test_short_completions_attend_as_long_ones_do(
    heads: tuple[int, int], prompt_lengths: list[int], lengths: list[int], prompt_of: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    shape = (len(prompt_lengths), heads[1], max(prompt_lengths), 8)
    inputs = [torch.randn((sum(lengths), count, 8), dtype=torch.double) for count in (heads[0], heads[1], heads[1])]
    inputs += [torch.randn(shape, dtype=torch.double) for _ in range(2)]
    wanted = torch.randn((sum(lengths), heads[0], 8), dtype=torch.double)
    found = []
    for few, kind in ((1 << 17, ShortCompletions), (0, Completions)):
        monkeypatch.setattr(attention, "FEW_PAIRS", few)
        query, key, value, prompt_key, prompt_value = leaves = [each.clone().requires_grad_() for each in inputs]
        prompts = Prompts(prompt_lengths, CPU)
        prompts.keys, prompts.values = {0: prompt_key}, {0: prompt_value}
        pattern = completions(lengths, prompt_of, prompts)
        assert isinstance(pattern, kind)
        attended = pattern.attend(0, query, key, value, 0.3)
        (attended * wanted).sum().backward()
        found.append([attended.detach(), *(leaf.grad for leaf in leaves)])
    for short, long in zip(*found, strict=True):
        torch.testing.assert_close(short, long, rtol=0, atol=1e-12)


@pytest.mark.parametrize("texts", [1, 8, 150])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_frozen_decoder_computes_the_same(architecture: str, texts: int) -> None:
    made = policy(architecture)
    assert isinstance(made.decoder, LeanDecoder)
    size = made.model.get_input_embeddings().weight.shape[1]
    embedded, positions = torch.randn(2 * texts, size), torch.tensor([0, 1] * texts)
    with torch.no_grad():
        frozen = FrozenDecoder(made.decoder, 2)
        expected, found = (decoder(embedded, positions, Prompts([2] * texts, CPU)) for decoder in (made.decoder, frozen))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        wanted = torch.tensor([2 * texts - 1, 0])
        for decoder in (made.decoder, frozen):
            some = decoder(embedded, positions, Prompts([2] * texts, CPU), wanted)
            torch.testing.assert_close(some, expected[wanted], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rests", "shared"),
    [
        ([[1], [2]], 0),  # begin with nothing else in common
        ([[], [1]], -1),  # one is the beginning of the other, and keeps its last token
        ([[1, 2], [1, 3], [1, 2, 3]], 1),
        ([[1, 2]], None),  # a single prompt shares nothing
    ],
)
def test_what_prompts_begin_with_is_shared_where_it_pays(rests: list[list[int]], shared: int | None) -> None:
    def found(length: int) -> int:
        return shared_start([[7] * length + rest for rest in rests])

    assert found(2 * LEAST_SHARED) == (0 if shared is None else 2 * LEAST_SHARED + shared)
    assert found(LEAST_SHARED - 2) == 0, "so few tokens are not worth it"
