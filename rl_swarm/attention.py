"""Attention over packed tokens: texts lie one behind the other in a single row, and a prompt is there once for all its completions.

transformers asks a function of ours for attention in every layer, and a pattern says who attends to whom: `Prompts` to themselves,
`Completions` to their prompt and themselves, `Growing` rows likewise, a token at a time. So the matrix products of a model run over
tokens without padding, and over a prompt once, whatever the architecture around its attention is. Only attention itself is
padded, inside one call. Nothing here knows weights, and what it cannot do (sliding windows, sinks, capped scores) it refuses.

Shapes are in the names:
    N  packed tokens      I  prompts      P  tokens of a prompt, padded        H  query heads     K  key and value heads
    M  growing rows       B  completions  T  tokens of a completion, padded    D  size of a head
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "rl_swarm_packed"
REFUSED = ("sliding_window", "softcap", "s_aux", "position_bias")  # what some architectures add to attention, and no pattern has


class Unpackable(Exception):
    """The architecture wants more of its attention than patterns can give."""


class Pattern(Protocol):
    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor: ...


class PackedDecoder(Protocol):
    """Embedded tokens in, the last hidden state of each out; the layers take their attention from the pattern."""

    def __call__(self, embedded_ND: Tensor, positions_N: Tensor, pattern: Pattern) -> Tensor: ...


class HostedDecoder:
    """A decoder of transformers, of any architecture that lets its attention be replaced."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def __call__(self, embedded_ND: Tensor, positions_N: Tensor, pattern: Pattern) -> Tensor:
        # The mask is never read: given in four dimensions, it keeps the model from making one of N × N.
        unread = positions_N.new_zeros((1, 1, 1, 1), dtype=torch.bool)
        inputs = {"inputs_embeds": embedded_ND[None], "position_ids": positions_N[None], "attention_mask": unread}
        config = self._decoder.config
        before, config._attn_implementation = config._attn_implementation, NAME
        try:
            hidden: Tensor = self._decoder(**inputs, use_cache=False, pattern=pattern).last_hidden_state
        finally:
            config._attn_implementation = before
        return hidden[0]


def positions(lengths: Sequence[int], device: torch.device, starts: Sequence[int] | None = None) -> Tensor:
    """The position of each token in its own text; texts that continue another one start where that ended."""
    return torch.cat(
        [
            torch.arange(start, start + length, device=device)
            for start, length in zip(starts or [0] * len(lengths), lengths, strict=True)
        ]
    )


class Prompts:
    """Every prompt attends to itself. Keys and values are kept, padded, by layer: what comes after the prompts needs them."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.grid = Grid(lengths, device)
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        query, key, value = (self.grid.spread(packed).transpose(1, 2) for packed in (query_NHD, key_NKD, value_NKD))
        self.keys[layer], self.values[layer] = key, value
        # Padding is on the right, so no token comes before it that could attend to it.
        grouped = query.shape[1] != key.shape[1]
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        return self.grid.pack(attended.transpose(1, 2))


class Completions:
    """Every completion attends to its prompt and, up to each token, to itself.

    `keys` and `values` are the prompts', by layer; `prompt_of` has the number of each completion's prompt.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        prompt_of: Sequence[int],
        prompts: "Prompts",
        keys: dict[int, Tensor],
        values: dict[int, Tensor],
    ) -> None:
        device = prompts.grid.filled.device
        self._grid, self._keys, self._values = Grid(lengths, device), keys, values
        self._prompt_of_B = torch.tensor(prompt_of, device=device)
        width = self._grid.filled.shape[1]
        causal_TT = torch.ones((width, width), dtype=torch.bool, device=device).tril()
        prompt_BTP = prompts.grid.filled[self._prompt_of_B].unsqueeze(1).expand(-1, width, -1)
        self._visible_BTS = torch.cat([prompt_BTP, causal_TT.expand(len(lengths), -1, -1)], dim=-1)
        self._bias_B1QS: Tensor | None = None

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        sources = ((self._keys[layer], key_NKD), (self._values[layer], value_NKD))
        key, value = (
            torch.cat([prompts.index_select(0, self._prompt_of_B), self._grid.spread(own).transpose(1, 2)], dim=2)
            for prompts, own in sources
        )
        query_BTHD = self._grid.spread(query_NHD)
        rows, width, heads, size = query_BTHD.shape
        repeats = heads // key.shape[1]
        # Heads that share their keys become more queries of one head: no key is copied, and every backend has a fast kernel for it.
        query_BKQD = query_BTHD.transpose(1, 2).reshape(rows, -1, repeats * width, size)
        if self._bias_B1QS is None:  # in the queries' type, or every layer would make and keep its own
            visible = self._visible_BTS.repeat(1, repeats, 1).unsqueeze(1)
            self._bias_B1QS = torch.zeros_like(visible, dtype=query_NHD.dtype).masked_fill_(~visible, -torch.inf)
        attended = scaled_dot_product_attention(query_BKQD, key, value, attn_mask=self._bias_B1QS, scale=scale)
        return self._grid.pack(attended.reshape(rows, heads, width, size).transpose(1, 2))


class Growing:
    """Rows that get one token at each step, `group_size` rows to a prompt, whose keys and values all of them share.

    Every row has room for `steps` tokens of its own, reserved once. Rows that ended leave by `keep`.
    """

    def __init__(self, prompts: Prompts, group_size: int, steps: int) -> None:
        self._steps, self.step = steps, 0
        device = prompts.grid.filled.device
        count = len(prompts.grid.filled)
        self._prompt_of_M = torch.arange(count, device=device).repeat_interleave(group_size)
        self._hidden_I1P = ~prompts.grid.filled.unsqueeze(1)
        self._ragged = not bool(prompts.grid.filled.all())
        # Laid out as products want them, and taken from the prompts, so that each layer exists twice only for a moment.
        layers = list(prompts.keys)
        self._keys = {layer: prompts.keys.pop(layer).transpose(-1, -2).contiguous() for layer in layers}
        self._values = {layer: prompts.values.pop(layer).contiguous() for layer in layers}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._place(count)

    def _place(self, count: int) -> None:
        """Give every row a cell in a table of prompts × places: rows of one prompt ask its keys together."""
        per_prompt = torch.bincount(self._prompt_of_M, minlength=count)
        self._cells = (count, int(per_prompt.max()))
        firsts_I = per_prompt.cumsum(0) - per_prompt
        places_M = torch.arange(len(self._prompt_of_M), device=firsts_I.device) - firsts_I[self._prompt_of_M]
        full = count * self._cells[1] == len(self._prompt_of_M)
        self._cell_of_M = None if full else self._prompt_of_M * self._cells[1] + places_M

    def keep(self, kept_M: Tensor) -> None:
        """Go on with these rows only, given as indices in order."""
        self._prompt_of_M = self._prompt_of_M[kept_M]
        for layer, (keys, values) in self._own.items():  # one after the other: no more than one layer exists twice
            self._own[layer] = (keys[kept_M], values[kept_M])
        self._place(self._cells[0])

    def attend(self, layer: int, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor, scale: float) -> Tensor:
        rows, heads, size = query_NHD.shape
        shared = key_NKD.shape[1]
        query_MKRD = (query_NHD * scale).view(rows, shared, heads // shared, size)
        if layer not in self._own:
            room = (rows, shared, self._steps, size)
            self._own[layer] = (key_NKD.new_empty(room), value_NKD.new_empty(room))
        keys, values = self._own[layer]
        keys[:, :, self.step], values[:, :, self.step] = key_NKD, value_NKD
        keys_MKSD, values_MKSD = keys[:, :, : self.step + 1], values[:, :, : self.step + 1]

        prompt_MKRP = self._to_rows(self._to_cells(query_MKRD) @ self._keys[layer], query_MKRD)
        own_MKRS = query_MKRD @ keys_MKSD.transpose(-1, -2)
        if self._ragged:
            prompt_MKRP = prompt_MKRP.masked_fill(self._hidden_I1P[self._prompt_of_M].unsqueeze(1), -torch.inf)
        weights = torch.cat([prompt_MKRP, own_MKRS], dim=-1).softmax(-1)
        width = prompt_MKRP.shape[-1]
        from_prompt = self._to_rows(self._to_cells(weights[..., :width]) @ self._values[layer], query_MKRD)
        return (from_prompt + weights[..., width:] @ values_MKSD).reshape(rows, heads, size)

    def _to_cells(self, rows_MKRX: Tensor) -> Tensor:
        """Rows to the table of their prompts, as [I, K, places × R, X]; empty places hold zeros."""
        (prompts, places), (_, shared, repeats, size) = self._cells, rows_MKRX.shape
        if self._cell_of_M is not None:
            empty = rows_MKRX.new_zeros((prompts * places, shared, repeats, size))
            rows_MKRX = empty.index_copy_(0, self._cell_of_M, rows_MKRX)
        return rows_MKRX.view(prompts, places, shared, repeats, size).transpose(1, 2).reshape(prompts, shared, -1, size)

    def _to_rows(self, cells_IKQX: Tensor, like_MKRD: Tensor) -> Tensor:
        (prompts, places), (_, shared, repeats, _) = self._cells, like_MKRD.shape
        cells = cells_IKQX.view(prompts, shared, places, repeats, -1).transpose(1, 2).reshape(prompts * places, shared, repeats, -1)
        return cells if self._cell_of_M is None else cells.index_select(0, self._cell_of_M)


class Grid:
    """Where each packed token lies when texts are put side by side, padded on the right; `filled` tells tokens from padding."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        lengths_R = torch.tensor(lengths)
        columns_C = torch.arange(max(lengths))
        filled = columns_C < lengths_R.unsqueeze(1)
        firsts_R = lengths_R.cumsum(0) - lengths_R
        sources = (firsts_R.unsqueeze(1) + columns_C) * filled  # padding repeats the very first token
        self.filled = filled.to(device)
        self._sources = sources.flatten().to(device)
        self._cells_N = filled.flatten().nonzero().squeeze(1).to(device)

    def spread(self, packed_N: Tensor) -> Tensor:
        return packed_N.index_select(0, self._sources).view(*self.filled.shape, *packed_N.shape[1:])

    def pack(self, spread: Tensor) -> Tensor:
        return spread.flatten(0, 1).index_select(0, self._cells_N)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, scaling: float, pattern: Pattern, **rest: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, with heads before tokens and a batch of one row."""
    if wanted := [name for name in REFUSED if rest.get(name) is not None]:
        raise Unpackable(f"attention with {wanted[0]}")
    query_NHD, key_NKD, value_NKD = (states[0].transpose(0, 1) for states in (query, key, value))
    return pattern.attend(module.layer_idx, query_NHD, key_NKD, value_NKD, scaling).unsqueeze(0), None


AttentionInterface.register(NAME, _attend)
