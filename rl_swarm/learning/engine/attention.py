"""Attention over packed tokens: texts lie one behind the other in a single row, and a prompt is there once for all its completions.

transformers calls our function for attention in every layer, and a pattern says which token attends to which: `Prompts` to
themselves, `Completions` to their prompt and themselves, both in one pass (`Whole`), `Growing` rows likewise, a token at a time. So
the matrix products of any architecture run over tokens without padding, and over each prompt once; only attention itself is padded,
inside one call. Nothing here knows weights. Sliding windows, sinks and capped scores are refused.

Shapes are in the names:
    N  packed tokens      I  prompts      P  tokens of a prompt, padded        H  query heads     K  key and value heads
    M  growing rows       B  completions  T  tokens of a completion, padded    D  size of a head
    C  places for the completions of a prompt         R  query heads that share a key
    A  pairs of a completion and a key head           Z  pairs of a prompt and a key head
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from rl_swarm.learning.engine.grid import Grid, positions
from rl_swarm.learning.engine.libraries import require_transformers

require_transformers()  # before the first import of transformers in a node
from transformers import AttentionInterface  # noqa: E402

NAME = "rl_swarm_packed"
FEW_PAIRS = 1 << 17  # of tokens, one attending to the other
LEAST = 16  # columns of a product: fewer are slow
LEAST_SHARED = 16  # tokens: computing fewer once, instead of in every prompt, saves nothing
REFUSED = ("sliding_window", "softcap", "s_aux", "position_bias")  # additions to attention that no pattern computes


class Unpackable(Exception):
    """The architecture needs attention that patterns cannot compute."""


class Pattern(Protocol):
    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor: ...


class PackedDecoder(Protocol):
    """Embedded tokens in, the last hidden state of each token (or of those `wanted`) out; the pattern computes the attention."""

    def __call__(self, embedded_ND: Tensor, positions_N: Tensor, pattern: Pattern, wanted_X: Tensor | None = None) -> Tensor: ...


class HostedDecoder:
    """A decoder of transformers, of any architecture that lets its attention be replaced."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def __call__(self, embedded_ND: Tensor, positions_N: Tensor, pattern: Pattern, wanted_X: Tensor | None = None) -> Tensor:
        # Nobody reads this mask. Its four dimensions keep the model from making one of N × N.
        unread = positions_N.new_zeros((1, 1, 1, 1), dtype=torch.bool)
        inputs = {"inputs_embeds": embedded_ND[None], "position_ids": positions_N[None], "attention_mask": unread}
        config = self._decoder.config
        before, config._attn_implementation = config._attn_implementation, NAME
        try:
            hidden: Tensor = self._decoder(**inputs, use_cache=False, pattern=pattern).last_hidden_state
        finally:
            config._attn_implementation = before
        return hidden[0] if wanted_X is None else hidden[0].index_select(0, wanted_X)


def shared_start(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with, where that is worth computing once: an instruction and examples are often most of a
    prompt. Each prompt keeps at least its last token for itself."""
    if len(prompts) < 2:
        return 0
    order = sorted(map(tuple, prompts))  # like words in a dictionary: what the first and the last begin with, all begin with
    low, high = order[0], order[-1]
    alike = next((place for place, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    alike = min(alike, min(map(len, prompts)) - 1)
    return alike if alike >= LEAST_SHARED else 0


def shared_once(prompts: Sequence[Sequence[int]], shared: int) -> list[Sequence[int]]:
    """The tokens of the prompts as `Prompts` wants them packed: those that they share, then the rest of each."""
    return [prompts[0][:shared], *(prompt[shared:] for prompt in prompts)]


class Prompts:
    """Every prompt attends to itself. Keeps keys and values, padded, by layer, for the texts that follow the prompts.

    The first `shared` tokens of all prompts are the same. They are packed once, before the rest of each prompt.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, shared: int = 0) -> None:
        rests = [length - shared for length in lengths]
        self._shared, self._rests = shared, Grid(rests, device)
        self.filled_IP = torch.cat([self._rests.filled.new_ones((len(lengths), shared)), self._rests.filled], dim=1)
        self.tokens = shared + self._rests.tokens
        self.positions_N = positions([shared, *rests], device, [0] + [shared] * len(rests))
        self.lasts_I = torch.tensor(rests, device=device).cumsum(0) + shared - 1  # the last token of each prompt
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        query, key, value = (self._spread(packed).transpose(1, 2) for packed in (query_NHD, key_NKD, value_NKD))
        self.keys[layer], self.values[layer] = key, value
        # Padding is on the right, where no token attends to it.
        grouped = query.shape[1] != key.shape[1]
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        return self._pack(attended.transpose(1, 2))

    def _spread(self, packed_NHD: Tensor) -> Tensor:
        """As [I, P, H, D]. Attention of shared tokens is computed for each prompt: it is cheap beside the matrix products."""
        if not self._shared:
            return self._rests.spread(packed_NHD)
        rest_IPHD = self._rests.spread(packed_NHD[self._shared :])
        return torch.cat([packed_NHD[: self._shared].expand(len(rest_IPHD), -1, -1, -1), rest_IPHD], dim=1)

    def _pack(self, spread_IPHD: Tensor) -> Tensor:
        if not self._shared:
            return self._rests.pack(spread_IPHD)
        return torch.cat([spread_IPHD[0, : self._shared], self._rests.pack(spread_IPHD[:, self._shared :])])


class Whole:
    """Prompts and, behind them, all their completions in one pass."""

    def __init__(self, prompts: Prompts, completions: Pattern) -> None:
        self._prompts, self._completions = prompts, completions

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        tokens = self._prompts.tokens
        spans = ((self._prompts, slice(tokens)), (self._completions, slice(tokens, None)))
        return torch.cat([pattern.attend(layer, query_NHD[span], key_NKD[span], value_NKD[span], scale) for pattern, span in spans])


def completions(lengths: Sequence[int], prompt_of: Sequence[int], prompts: Prompts) -> Pattern:
    """Every completion attends to its prompt and, up to each token, to itself, in the way that is faster at this size.

    `prompt_of` has the number of each completion's prompt.
    """
    filled_IP = prompts.filled_IP
    pairs = len(lengths) * max(lengths) * (filled_IP.shape[1] + max(lengths))
    few = pairs <= FEW_PAIRS and filled_IP.device.type == "cpu"
    return (ShortCompletions if few else Completions)(lengths, prompt_of, prompts)


class Completions:
    """Completions side by side, each with a copy of its prompt's keys before its own, as fused kernels need them."""

    def __init__(self, lengths: Sequence[int], prompt_of: Sequence[int], prompts: Prompts) -> None:
        filled_IP, device = prompts.filled_IP, prompts.filled_IP.device
        self._grid, self._prompts = Grid(lengths, device), prompts
        self._prompt_of_B = torch.tensor(prompt_of, device=device)
        width = self._grid.filled.shape[1]
        causal_TT = torch.ones((width, width), dtype=torch.bool, device=device).tril()
        prompt_BTP = filled_IP[self._prompt_of_B].unsqueeze(1).expand(-1, width, -1)
        self._visible_BTS = torch.cat([prompt_BTP, causal_TT.expand(len(lengths), -1, -1)], dim=-1)
        self._bias_B1QS: Tensor | None = None

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        sources = ((self._prompts.keys[layer], key_NKD), (self._prompts.values[layer], value_NKD))
        key, value = (
            torch.cat([prompts.index_select(0, self._prompt_of_B), self._grid.spread(own).transpose(1, 2)], dim=2)
            for prompts, own in sources
        )
        query_BTHD = self._grid.spread(query_NHD)
        rows, width, heads, size = query_BTHD.shape
        repeats = heads // key.shape[1]
        # Heads that share keys become more queries of one head: no key is copied, and every backend has a fast kernel for that.
        query_BKQD = query_BTHD.transpose(1, 2).reshape(rows, -1, repeats * width, size)
        if self._bias_B1QS is None:  # made once in the queries' type, or every layer would convert and keep its own
            visible = self._visible_BTS.repeat(1, repeats, 1).unsqueeze(1)
            self._bias_B1QS = torch.zeros_like(visible, dtype=query_NHD.dtype).masked_fill_(~visible, -torch.inf)
        attended = scaled_dot_product_attention(query_BKQD, key, value, attn_mask=self._bias_B1QS, scale=scale)
        return self._grid.pack(attended.reshape(rows, heads, width, size).transpose(1, 2))


class ShortCompletions:
    """Completions of which all queries of a prompt meet its keys in one product, and the weights of all pairs exist.

    At this size a fused kernel, which needs a copy of the prompt's keys for every completion, takes longer (1.7 times for nano).
    """

    def __init__(self, lengths: Sequence[int], prompt_of: Sequence[int], prompts: Prompts) -> None:
        self._prompts, self._table = prompts, _Table(lengths, prompt_of, prompts.filled_IP)

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        prompts = (self._prompts.keys[layer], self._prompts.values[layer])
        return _Shared.apply(query_NHD, key_NKD, value_NKD, *prompts, self._table, scale)


class _Table:
    """Cells for completions, prompts × places, some of which may be empty.

    The backward pass needs it, so it holds no prompts: their keys lead to the graph that would hold it, and none of that would ever
    be freed.
    """

    def __init__(self, lengths: Sequence[int], prompt_of: Sequence[int], filled_IP: Tensor) -> None:
        places = [list(prompt_of[:number]).count(prompt) for number, prompt in enumerate(prompt_of)]
        self._cells = (len(filled_IP), max(places) + 1)
        cells = [prompt * self._cells[1] + place for prompt, place in zip(prompt_of, places, strict=True)]
        self._grid = Grid(lengths, filled_IP.device, cells, len(filled_IP) * self._cells[1])
        self._hidden_I1P = None if bool(filled_IP.all()) else ~filled_IP.unsqueeze(1)
        width = self._grid.filled.shape[1]
        self._later_TT = torch.full((width, width), -torch.inf, device=filled_IP.device).triu(1)

    def inward(self, packed_NHD: Tensor, key_heads: int) -> Tensor:
        """Move packed states to [A, R · T, D], cells of one prompt and key head one behind the other; padding holds zeros."""
        spread = self._grid.spread(packed_NHD)
        _, width, heads, size = spread.shape
        table_ICTKRD = spread.view(*self._cells, width, key_heads, heads // key_heads, size)
        return table_ICTKRD.permute(0, 3, 1, 4, 2, 5).reshape(-1, heads // key_heads * width, size)

    def outward(self, states_AQD: Tensor, key_heads: int) -> Tensor:
        (prompts, places), width, size = self._cells, self._grid.filled.shape[1], states_AQD.shape[-1]
        table_IKCRTD = states_AQD.view(prompts, key_heads, places, -1, width, size)
        return self._grid.pack(table_IKCRTD.permute(0, 2, 4, 1, 3, 5).reshape(prompts * places, width, -1, size))

    def weights(self, query_AQD: Tensor, key_ATD: Tensor, prompt_key_ZPD: Tensor) -> Tensor:
        """Attention to a prompt's tokens and then a completion's own, for all queries of a prompt and key head together."""
        to_prompt = torch.bmm(_by_prompt(query_AQD, prompt_key_ZPD), prompt_key_ZPD.transpose(1, 2))
        if self._hidden_I1P is not None:
            to_prompt.view(self._cells[0], -1, to_prompt.shape[-1]).masked_fill_(self._hidden_I1P, -torch.inf)
        later_QT = self._later_TT.repeat(query_AQD.shape[1] // key_ATD.shape[1], 1).to(query_AQD.dtype)
        to_own = torch.baddbmm(later_QT, query_AQD, key_ATD.transpose(1, 2))
        return torch.cat([to_prompt, _by_prompt(to_own, prompt_key_ZPD)], dim=-1).softmax(-1)


def _by_prompt(states_AQX: Tensor, like_Z: Tensor) -> Tensor:
    return states_AQX.view(len(like_Z), -1, states_AQX.shape[-1])


class _Shared(torch.autograd.Function):
    """Attention of short completions, written out: by prompt to the prompt's keys, by completion to its own."""

    @staticmethod
    def forward(
        ctx: Any,
        query_NHD: Tensor,
        key_NKD: Tensor,
        value_NKD: Tensor,
        prompt_key_IKPD: Tensor,
        prompt_value_IKPD: Tensor,
        table: _Table,
        scale: float,
    ) -> Tensor:
        key_heads, width = prompt_key_IKPD.shape[1:3]
        query, key, value = (table.inward(states, key_heads) for states in (query_NHD * scale, key_NKD, value_NKD))
        prompt_key, prompt_value = prompt_key_IKPD.flatten(0, 1), prompt_value_IKPD.flatten(0, 1)
        weights = table.weights(query, key, prompt_key)
        attended = torch.bmm(weights[..., :width], prompt_value)
        attended.view(query.shape).baddbmm_(weights.view(*query.shape[:2], -1)[..., width:], value)
        ctx.save_for_backward(query, key, value, prompt_key, prompt_value, weights)
        ctx.table, ctx.scale, ctx.prompts = table, scale, prompt_key_IKPD.shape
        return table.outward(attended, key_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHD: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, prompt_key, prompt_value, weights = ctx.saved_tensors
        table, (_, key_heads, width, _) = ctx.table, ctx.prompts
        grad = table.inward(grad_NHD, key_heads)
        asked, grad_asked = _by_prompt(query, prompt_key), _by_prompt(grad, prompt_key)
        own = weights.view(*query.shape[:2], -1)[..., width:]
        by_prompt, by_own = torch.bmm(grad_asked, prompt_value.transpose(1, 2)), torch.bmm(grad, value.transpose(1, 2))
        grad_weights = torch.cat([by_prompt, _by_prompt(by_own, prompt_key)], dim=-1)
        scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        own_scores = scores.view(*query.shape[:2], -1)[..., width:]
        query_grad = torch.bmm(scores[..., :width], prompt_key)
        query_grad.view(query.shape).baddbmm_(own_scores, key)
        return (
            table.outward(query_grad, key_heads).mul_(ctx.scale),
            table.outward(torch.bmm(own_scores.transpose(1, 2), query), key_heads),
            table.outward(torch.bmm(own.transpose(1, 2), grad), key_heads),
            torch.bmm(scores[..., :width].transpose(1, 2), asked).view(ctx.prompts),
            torch.bmm(weights[..., :width].transpose(1, 2), grad_asked).view(ctx.prompts),
            None,
            None,
        )


class Growing:
    """Rows that get one token at each step, up to `steps`; the `group_size` rows of a prompt share its keys and values.

    Every row has a cell in a table of prompts × places, so that rows of one prompt meet its keys in one product. Keys and values of
    a row's own tokens lie in the same order. Rows that ended leave by `keep`; an empty cell is computed and never read.
    """

    def __init__(self, prompts: Prompts, group_size: int, steps: int) -> None:
        self._steps, self._step = steps, -1
        filled = prompts.filled_IP
        self._prompt_of_M = torch.arange(len(filled), device=filled.device).repeat_interleave(group_size)
        self._hidden_I1P = None if bool(filled.all()) else ~filled.unsqueeze(1)
        # Laid out as products need them, and taken from the prompts, so that only one layer at a time exists twice.
        layers = list(prompts.keys)
        self._keys = {layer: prompts.keys.pop(layer).transpose(-1, -2).contiguous().flatten(0, 1) for layer in layers}
        self._values = {layer: prompts.values.pop(layer).contiguous().flatten(0, 1) for layer in layers}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._place(len(filled))
        self.grow()

    def grow(self) -> None:
        """Go on to the rows' next token."""
        self._step += 1
        seen = min(self._steps, max(LEAST, self._step + 1))  # tokens yet to come are masked
        self._later_S = next(iter(self._values.values())).new_zeros(seen)
        self._later_S[self._step + 1 :] = -torch.inf

    def _place(self, count: int) -> None:
        per_prompt = torch.bincount(self._prompt_of_M, minlength=count)
        self._cells = (count, int(per_prompt.max()))
        firsts_I = per_prompt.cumsum(0) - per_prompt
        self._place_of_M = torch.arange(len(self._prompt_of_M), device=firsts_I.device) - firsts_I[self._prompt_of_M]
        full = count * self._cells[1] == len(self._prompt_of_M)
        self._cell_of_M = None if full else self._prompt_of_M * self._cells[1] + self._place_of_M
        self._bias_ZQP: Tensor | None = None

    def keep(self, kept_M: Tensor) -> None:
        """Go on with these rows only, given as indices in order."""
        self._prompt_of_M, places_M = self._prompt_of_M[kept_M], self._place_of_M[kept_M]
        self._place(self._cells[0])
        for layer, caches in self._own.items():  # one after the other, so that only one layer at a time exists twice
            self._own[layer] = (self._moved(caches[0], places_M), self._moved(caches[1], places_M))

    def _moved(self, cache_IKCTD: Tensor, places_M: Tensor) -> Tensor:
        prompts, key_heads, _, steps, size = cache_IKCTD.shape
        moved = cache_IKCTD.new_zeros((prompts, key_heads, self._cells[1], steps, size))
        moved[self._prompt_of_M, :, self._place_of_M] = cache_IKCTD[self._prompt_of_M, :, places_M]
        return moved

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        (_, heads, size), key_heads, (prompts, places) = query_NHD.shape, key_NKD.shape[1], self._cells
        query_IKCRD = self._to_cells(query_NHD * scale, key_heads).contiguous()
        if layer not in self._own:
            room = (prompts, key_heads, places, self._steps, size)
            self._own[layer] = (key_NKD.new_zeros(room), value_NKD.new_zeros(room))
        own = self._own[layer]
        for cache_IKCTD, new in zip(own, (key_NKD, value_NKD), strict=True):
            cache_IKCTD[:, :, :, self._step] = self._to_cells(new, key_heads).squeeze(3)
        keys_ASD, values_ASD = (cache_IKCTD.flatten(0, 2)[:, : len(self._later_S)] for cache_IKCTD in own)

        to_prompt = self._to_prompt(query_IKCRD.view(prompts * key_heads, -1, size), self._keys[layer])
        to_own = torch.baddbmm(self._later_S, query_IKCRD.flatten(0, 2), keys_ASD.transpose(1, 2))
        weights = torch.cat([to_prompt, to_own.view(*to_prompt.shape[:2], -1)], dim=-1).softmax(-1)
        width = to_prompt.shape[-1]
        attended = torch.bmm(weights[..., :width], self._values[layer])
        own_weights_ARS = weights.view(keys_ASD.shape[0], heads // key_heads, -1)[..., width:]
        attended.view(keys_ASD.shape[0], -1, size).baddbmm_(own_weights_ARS, values_ASD)
        cells = attended.view(prompts, key_heads, places, -1, size).transpose(1, 2).reshape(prompts * places, heads, size)
        return cells if self._cell_of_M is None else cells.index_select(0, self._cell_of_M)

    def _to_prompt(self, query_ZQD: Tensor, keys_ZDP: Tensor) -> Tensor:
        """Scores of the prompts' tokens; of padding, minus infinity."""
        if self._hidden_I1P is None:
            return torch.bmm(query_ZQD, keys_ZDP)
        if self._bias_ZQP is None:
            shape = (*query_ZQD.shape[:2], keys_ZDP.shape[-1])
            hidden_Z1P = self._hidden_I1P.repeat_interleave(shape[0] // self._cells[0], dim=0)
            self._bias_ZQP = query_ZQD.new_zeros(shape).masked_fill_(hidden_Z1P, -torch.inf)
        return torch.baddbmm(self._bias_ZQP, query_ZQD, keys_ZDP)

    def _to_cells(self, rows_MHD: Tensor, key_heads: int) -> Tensor:
        """Move rows to their cells, as [I, K, C, R, D]; empty cells hold zeros."""
        prompts, places = self._cells
        if self._cell_of_M is not None:
            empty = rows_MHD.new_zeros((prompts * places, *rows_MHD.shape[1:]))
            rows_MHD = empty.index_copy_(0, self._cell_of_M, rows_MHD)
        return rows_MHD.view(prompts, places, key_heads, -1, rows_MHD.shape[-1]).transpose(1, 2)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, scaling: float, pattern: Pattern, **rest: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, with heads before tokens and a batch of one row."""
    if wanted := [name for name in REFUSED if rest.get(name) is not None]:
        raise Unpackable(f"attention with {wanted[0]}")
    query_NHD, key_NKD, value_NKD = (states[0].transpose(0, 1) for states in (query, key, value))
    return pattern.attend(module.layer_idx, query_NHD, key_NKD, value_NKD, scaling).unsqueeze(0), None


AttentionInterface.register(NAME, _attend)
