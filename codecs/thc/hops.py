"""One round of THC: a chunk's message is its slice of the integer sums, which no hop rounds again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import pack, unpack, unpack_add
from gradwire.codecs.hop_codec import LossyHops
from gradwire.codecs.sums import chunk_bounds
from gradwire.codecs.thc import definition
from gradwire.codecs.thc.blocks import UNIT, Blocks
from gradwire.codecs.thc.definition import Randomness
from gradwire.codecs.thc.ranges import Ranges
from gradwire.codecs.thc.table import QuantizationTable


class THCHops(LossyHops):
    """Hops of integer sums, `bits` each in every message. Chunks are slices of the rotated bucket."""

    def __init__(
        self,
        x: Tensor,
        size: int,
        num_chunks: int,
        bits: int,
        blocks: Blocks,
        ranges: Ranges,
        table: QuantizationTable,
        randomness: Randomness,
        bounds: Sequence[int] | None = None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to. Chunks lie between
        the `bounds`, or are equally long."""
        assert table.granularity * size < 1 << bits, f"{bits} bits do not hold sums of {size} workers"
        self._x, self._size, self._bits = x, size, bits
        self._blocks, self._ranges, self._table, self._randomness = blocks, ranges, table, randomness
        self._bounds = bounds or chunk_bounds(blocks.total, num_chunks, UNIT)
        self._sums = definition.quantize(x, blocks, ranges, table, randomness)
        self._losses: Tensor | None = None

    def message_bytes(self, chunks: range, workers: int) -> int:
        return (self._bounds[chunks.stop] - self._bounds[chunks.start]) // 8 * self._bits

    def _own(self, message: Tensor, chunks: range) -> Tensor:
        """The sums of `chunks`."""
        assert message.numel() == self.message_bytes(chunks, 1), "message length differs from message_bytes()"
        return self._sums[self._bounds[chunks.start] : self._bounds[chunks.stop]]

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        pack(self._own(out, chunks), self._bits, out)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        unpack_add(message, self._bits, self._own(message, chunks))

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        self._own(message, chunks).copy_(unpack(message, self._bits))

    def finish(self) -> Tensor:
        return self._mean(self._size, self._x.dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        mean = self._mean(self._size, torch.float32)
        return torch.cat([mean[:0], *(mean[slice(*self._bounds[c : c + 2])] for c in chunks)])

    def keep_losses(self) -> None:
        """All that is lost is lost before the first hop, where the sums are this worker's own integers."""
        self._losses = self._x.to(torch.float32) - self._mean(1, torch.float32)

    def losses(self) -> Tensor:
        assert self._losses is not None, "losses() without keep_losses()"
        return self._losses

    def _mean(self, workers: int, dtype: torch.dtype) -> Tensor:
        return definition.dequantize(
            self._sums, workers, self._blocks, self._ranges, self._table, self._randomness, dtype
        )
