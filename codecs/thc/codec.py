"""THC: sums of quantized integers after a rotation (THC, NSDI 2024; hop by hop as in DynamiQ §5).

A chunk's message is its slice of the integer sums, which are exact: hops do not round again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import add_and_pack, pack, unpack_add, write_values
from gradwire.codecs.collectives import Op
from gradwire.codecs.costs import COPY, MAXIMUM, NOTHING, Costs, hop_costs, moved, nearest, once
from gradwire.codecs.hop_codec import LossyHopCodec, LossyHops
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.native.choice import without_kernels
from gradwire.codecs.native.loading import BUCKETS
from gradwire.codecs.options.quantized import LARGEST_BITS, LARGEST_ROTATION, THCOptions
from gradwire.codecs.shards import Shard
from gradwire.codecs.slices import chunk_bounds
from gradwire.codecs.thc.blocks import (
    UNIT,
    cut,
    neighbours,
    optimal_table,
    uniform_table,
    whole_blocks,
)
from gradwire.codecs.thc.definition import BlockQuantizer, Randomness
from gradwire.codecs.thc.ranges import Ranges, block_root_mean_squares, bucket_root_mean_square
from gradwire.codecs.traits import About, Traits


class THCHops(LossyHops):
    """Hops of integer sums, `bits` each in every message. Chunks are slices of the rotated bucket."""

    def __init__(
        self,
        x: Tensor,
        size: int,
        num_chunks: int,
        bits: int,
        quantizer: BlockQuantizer,
        bounds: Sequence[int] | None = None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to. Chunks lie between
        the `bounds`, or are equally long."""
        peak, total = quantizer.table.granularity, quantizer.blocks.total
        assert peak * size < 1 << bits, f"{bits} bits do not hold sums of {size} workers"
        self._x, self._size, self._bits, self._quantizer = x, size, bits, quantizer
        self._bounds = bounds or chunk_bounds(total, num_chunks, UNIT)
        self._sums = torch.empty(total, dtype=torch.int32, device=x.device)
        quantizer.quantize(x, self._sums)

    def message_bytes(self, chunks: range, workers: int) -> int:
        return (self._bounds[chunks.stop] - self._bounds[chunks.start]) // 8 * self._bits

    def message_offsets(self) -> tuple[int, ...]:
        return tuple(bound // 8 * self._bits for bound in self._bounds)

    def _own(self, message: Tensor, chunks: range) -> Tensor:
        """The sums of `chunks`, as many as `message` has bytes for."""
        assert message.numel() == self.message_bytes(chunks, 1), "message length differs from message_bytes()"
        return self._sums[self._bounds[chunks.start] : self._bounds[chunks.stop]]

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        pack(self._own(out, chunks), self._bits, out)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        unpack_add(message, self._bits, self._own(message, chunks))

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        add_and_pack(message, self._bits, self._own(message, chunks), out)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if message is None:
            self.encode(chunks, out, workers)
        else:
            own = self._own(message, chunks)
            add_and_pack(message, self._bits, own, out, sums=own)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        write_values(message, self._bits, self._own(message, chunks))

    def finish(self) -> Tensor:
        return self._mean(self._size, self._x.dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        mean = self._mean(self._size, torch.float32)
        return torch.cat([mean[:0], *(mean[slice(*self._bounds[c : c + 2])] for c in chunks)])

    def keep_losses(self) -> None:
        """Computes all losses at once: they occur before the first hop, while the sums are still this
        worker's own integers."""
        self._losses = self._x.to(torch.float32) - self._mean(1, torch.float32)

    def _mean(self, workers: int, dtype: torch.dtype) -> Tensor:
        written = dtype if dtype in BUCKETS else torch.float32
        mean = torch.empty(len(self._sums), dtype=written, device=self._sums.device)
        self._quantizer.dequantize(self._sums, workers, mean)
        return mean[: self._x.numel()].to(dtype)


@dataclass
class THC(THCOptions, LossyHopCodec):
    """Signs at random, a Hadamard transform per block, 4-bit integers, whose sums travel in 8 or 12 bits.

    Hops add exactly: on any topology the result is the mean of the workers' quantized gradients. Only the
    clamping is biased. Raises ValueError for settings outside their range.
    """

    about = About(
        group="quantized all-reduce",
        source="THC (NSDI 2024), as adapted in DynamiQ §5",
        wire_bits="8 for up to 8 workers, 12 for more, or `codec.bits`",
        metadata="largest norm of each block",
        unbiased_if="codec.t_p=√codec.block",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block and (self.block.bit_count() != 1 or not 16 <= self.block <= LARGEST_ROTATION):
            raise ValueError(
                f"codec.block={self.block}: choose 0 or a power of two from 16 to {LARGEST_ROTATION}"
            )
        # This peak is so large that no coordinate is clamped.
        unbiased = self.norm == "block" and 0 < self.block <= self.t_p**2
        self.traits = Traits(unbiased=unbiased, worst_vnmse=0.1)
        bits = self.quantization_bits
        uniform = self.table == "uniform"
        self._table = uniform_table(bits) if uniform else optimal_table(bits, self.granularity, self.t_p)

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        refused = super().supports(topology, size, layout)
        if refused is not None:
            return refused
        bits, needed, peak = self.sum_bits(size), self._needed_bits(size), self._table.granularity
        if needed > LARGEST_BITS:
            return (
                f"codec=thc sums in at most {LARGEST_BITS} bits, but with {size} workers {peak}·{size} needs "
                f"{needed}; choose a smaller codec.quantization_bits"
            )
        if bits < needed:
            return (
                f"codec.bits={bits} overflows with {size} workers: {peak}·{size} needs {needed} bits; choose "
                f"codec.bits={needed} or auto"
            )
        return None

    def sum_bits(self, size: int) -> int:
        """Bits of a sum on the wire, with `size` workers (12 beyond 8 as in DynamiQ §6.1)."""
        if self.bits == "auto":
            return max(8 if size <= 8 else 12, self._needed_bits(size))
        return int(self.bits)

    def _needed_bits(self, size: int) -> int:
        """⌈log2(g·n + 1)⌉: what the largest sum takes."""
        return (self._table.granularity * size).bit_length()

    def refuses_capture(self, layout: Layout) -> str | None:
        return without_kernels(layout.device)

    def statistics(self, x: Tensor, this_round: Round) -> list[tuple[Tensor, Op]]:
        blocks = cut(x.numel(), self.block)
        root_mean_squares = block_root_mean_squares(x, blocks)
        if self.norm == "bucket":
            root_mean_squares = bucket_root_mean_square(blocks, root_mean_squares)
        return [(root_mean_squares, "max_bits")]

    def plan_scatter(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> THCHops:
        """A plan whose chunks are whole blocks, so that each chunk can be rotated back on its own. Small
        blocks make shards nearly equally long."""
        bounds = whole_blocks(cut(x.numel(), self.block), num_chunks)
        return self.plan(x, this_round, reduced, num_chunks, bounds)

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        bounds = whole_blocks(cut(layout.numel, self.block), num_chunks)
        return Shard.between(*(min(bound, layout.numel) for bound in bounds[chunk : chunk + 2]))

    def plan(
        self,
        x: Tensor,
        this_round: Round,
        reduced: list[Tensor],
        num_chunks: int,
        bounds: Sequence[int] | None = None,
    ) -> THCHops:
        blocks = cut(x.numel(), self.block)
        ranges = Ranges(reduced[0].expand(blocks.count).contiguous(), self.t_p)
        randomness = Randomness(this_round.key, this_round.rank, this_round.key_place)
        if this_round.capture is not None and not self._table.is_uniform:
            this_round.capture.kept.append(neighbours(self._table, x.device))
        bits = self.sum_bits(this_round.size)
        quantizer = BlockQuantizer(blocks, ranges, self._table, randomness)
        return THCHops(x, this_round.size, num_chunks, bits, quantizer, bounds)

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        """Refuses error feedback if a worker loses all of its gradient. The size of sums is irrelevant,
        because a worker only loses a part of its own gradient."""
        lost = self._table.expected_error(self.t_p)
        if lost < 1:
            return None
        return (
            f"a worker loses {lost:.2g} times the energy it quantizes; choose more than "
            f"codec.quantization_bits={self.quantization_bits}, or a smaller codec.t_p"
        )

    def costs(self, workers: int) -> Costs:
        """Costs of the hops. The rotation has two costs: within the cache, and beyond it for large blocks."""
        rotated = "1024" if 0 < self.block <= 1 << 14 else "largest"
        bits = nearest((1, 3, 4, 8, 12), self.sum_bits(workers))
        pack, add, unpack = (once(f"bitpack.{name}.{bits}") for name in ("pack", "add", "unpack"))
        return {
            "statistics": once(f"thc.root_mean_squares.{rotated}"),
            "metadata": NOTHING if rotated == "largest" else moved(2 * MAXIMUM / self.block),
            "plan": once(f"thc.quantize.{rotated}"),
            **hop_costs(workers, pack, add, unpack + COPY),
            "finish": once(f"thc.dequantize.{rotated}"),
        }
