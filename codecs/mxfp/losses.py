"""What one worker's casts lose in a round: of its own gradient, and of the sums it adds to."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.floats import constant
from gradwire.codecs.mxfp import definition
from gradwire.codecs.mxfp.blocks import BLOCK, tiles
from gradwire.codecs.mxfp.formats import ElementFormat
from gradwire.codecs.mxfp.packing import decode
from gradwire.codecs.mxfp.scales import SharedScales


class CastLosses:
    """Losses in the gradient's units, (numel,) float32: `own` of the first cast, `of_sums` in elements."""

    def __init__(
        self, x: Tensor, sums: Tensor, scales: SharedScales, element: ElementFormat, size: int
    ) -> None:
        """`sums` are the packed elements that `x`, (numel,) of a floating dtype, has been cast to."""
        self._scales, self._element, self._size = scales, element, size
        own = torch.empty(x.numel(), dtype=torch.float32, device=x.device)
        definition.dequantize(sums, scales, element, own)
        self._own = x.to(torch.float32) - own.mul_(constant(size, own))
        blocks = scales.maxima.numel()
        self._of_sums = torch.zeros(blocks * BLOCK, dtype=torch.float32, device=x.device)
        self.share = 1.0
        """Of what sums lose: 1/size where all workers add up the same messages."""

    def values(self, packed: Tensor) -> Tensor:
        """The elements of packed blocks, float32, and of the bytes after the last whole one nothing."""
        size = definition.block_bytes(self._element)
        return decode(packed[: packed.numel() // size * size], self._element)

    def add(self, first_block: int, exact: Tensor, packed: Tensor) -> None:
        """What the blocks from `first_block` on lost when the sums `exact` were cast to `packed`."""
        lost = exact.sub_(self.values(packed)).mul_(self.share)
        places = self._of_sums[first_block * BLOCK :][: lost.numel()]
        places += lost[: places.numel()]

    def total(self) -> Tensor:
        """All losses so far."""
        means = torch.empty_like(self._own)
        for tile in tiles(0, self._scales.maxima.numel()):
            values = self._of_sums[tile.start * BLOCK : tile.stop * BLOCK].clone()
            definition.restore(values, self._scales.of(tile, self._element), tile, means)
        return self._own + means.mul_(constant(self._size, means))
