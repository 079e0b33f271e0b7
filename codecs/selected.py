"""Hops that sum some coordinates of a bucket, the same on all workers; the others are not sent."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.exact import Cast
from gradwire.codecs.floats import constant
from gradwire.codecs.sums import SumHops


class Selection(Protocol):
    """Some coordinates of a bucket, in a fixed order."""

    def take(self, x: Tensor) -> Tensor:
        """Their values in `x`, (numel,) of any dtype, which is left unchanged: (selected,)."""
        ...

    def put(self, values: Tensor, into: Tensor) -> None:
        """Write (selected,) values to their places in `into`, (numel,) of the same dtype."""
        ...


class SelectedHops(SumHops):
    """`LossyHops` of the selected coordinates, which travel as `wire_dtype`; in the mean the others are 0."""

    def __init__(
        self,
        x: Tensor,
        size: int,
        num_chunks: int,
        selection: Selection,
        wire_dtype: torch.dtype,
        factor: float = 1.0,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype, not written to; selected coordinates
        are multiplied by `factor`."""
        self._x, self._selection, self._factor = x, selection, factor
        super().__init__(selection.take(x), size, num_chunks, Cast(wire_dtype))
        if factor != 1.0:
            self._sums.mul_(constant(factor, x))

    def finish(self) -> Tensor:
        mean = torch.zeros_like(self._x)
        self._selection.put(super().finish(), mean)
        return mean

    def losses(self) -> Tensor:
        """All of the coordinates that are not sent; of the others what the factor and rounding change."""
        lost = self._x.to(torch.float32, copy=True)
        own = self._selection.take(lost)
        self._selection.put(own - own * constant(self._factor, own) + super().losses(), lost)
        return lost
