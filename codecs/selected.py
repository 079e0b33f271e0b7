"""Hops of some coordinates of a bucket, the same on all workers; the others are not sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.casts import CastHops


class Selection(Protocol):
    """Some coordinates of a bucket, in a fixed order."""

    def take(self, x: Tensor) -> Tensor:
        """Their values in `x`, (numel,) of any dtype, which is left unchanged: (selected,)."""
        ...

    def put(self, values: Tensor, into: Tensor) -> None:
        """Write (selected,) values to their places in `into`, (numel,) of the same dtype."""
        ...

    def before(self, bounds: Sequence[int]) -> list[int]:
        """How many selected coordinates lie before each of `bounds`, ascending from 0 to `numel`."""
        ...


class SelectedHops(CastHops):
    """Hops of the selected coordinates, which travel as `wire`; in the mean the others are 0."""

    def __init__(
        self,
        x: Tensor,
        size: int,
        num_chunks: int,
        selection: Selection,
        wire: torch.dtype,
        factor: float = 1.0,
        bounds: Sequence[int] | None = None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype, not written to; selected coordinates
        are multiplied by `factor`. Chunks hold equally many selected coordinates, or those between the
        `bounds`."""
        self._bucket, self._selection, self._factor, self._places = x, selection, factor, bounds
        own = selection.take(x)
        if factor != 1.0:
            own = own.to(torch.float32) * constant(factor, x)
        super().__init__(own, size, num_chunks, wire)
        if bounds is not None:
            self._bounds = selection.before(bounds)

    def finish(self) -> Tensor:
        mean = torch.zeros_like(self._bucket)
        self._selection.put(super().finish().to(mean.dtype), mean)
        return mean

    def shard(self, chunks: Sequence[int]) -> Tensor:
        assert self._places is not None, "shard() of chunks that hold other coordinates in every round"
        mean = torch.zeros(self._bucket.numel(), dtype=torch.float32, device=self._bucket.device)
        self._selection.put(super().shard(range(len(self._bounds) - 1)), mean)
        return torch.cat([mean[:0], *(mean[slice(*self._places[c : c + 2])] for c in chunks)])

    def losses(self) -> Tensor:
        """All of the coordinates that are not sent; of the others what the factor and rounding change."""
        lost = self._bucket.to(torch.float32, copy=True)
        own = self._selection.take(lost)
        self._selection.put(own - own * constant(self._factor, own) + super().losses(), lost)
        return lost
