"""Packed tokens (texts one behind the other in a single row) and the grid in which the texts lie side by side."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def positions(lengths: Sequence[int], device: torch.device, starts: Sequence[int] | None = None) -> Tensor:
    """The position of each token in its own text; a text that continues another one starts where that one ended."""
    spans = zip(starts or [0] * len(lengths), lengths, strict=True)
    return torch.cat([torch.arange(start, start + length, device=device) for start, length in spans])


class Grid:
    """Texts in rows, padded on the right with zeros; `filled` tells tokens from padding.

    Texts lie in order, or in the given `rows` out of `height`. A row without a text is all padding.
    """

    def __init__(
        self, lengths: Sequence[int], device: torch.device, rows: Sequence[int] | None = None, height: int | None = None
    ) -> None:
        width, places = max(lengths), list(rows or range(len(lengths)))
        self._cells_N = positions(lengths, device, [row * width for row in places])
        filled = torch.zeros((height or len(lengths)) * width, dtype=torch.bool, device=device)
        filled[self._cells_N] = True
        self.filled, self.tokens = filled.view(-1, width), len(self._cells_N)
        self._same = self.tokens == len(filled) and places == sorted(places)  # nothing to move: packed and spread are the same

    def spread(self, packed_N: Tensor) -> Tensor:
        if self._same:
            return packed_N.view(*self.filled.shape, *packed_N.shape[1:])
        return _Moved.apply(packed_N, self._put, self._take)

    def pack(self, spread: Tensor) -> Tensor:
        if self._same:
            return spread.flatten(0, 1)
        return _Moved.apply(spread, self._take, self._put)

    def _put(self, packed_N: Tensor) -> Tensor:
        empty = packed_N.new_zeros((self.filled.numel(), *packed_N.shape[1:]))
        return empty.index_copy_(0, self._cells_N, packed_N).view(*self.filled.shape, *packed_N.shape[1:])

    def _take(self, spread: Tensor) -> Tensor:
        return spread.flatten(0, 1).index_select(0, self._cells_N)


class _Moved(torch.autograd.Function):
    """Every token has one cell, so the gradient is simply moved `back`; autograd would look for several cells and add them."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad), None, None
