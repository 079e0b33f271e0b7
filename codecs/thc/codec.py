"""THC: sums of quantized integers after a rotation (THC, NSDI 2024; hop by hop as in DynamiQ §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.codecs.costs import COPY, MAXIMUM, NOTHING, Costs, hop_costs, moved, nearest, once
from gradwire.codecs.fields import check_fields
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Layout, Op, Round, refused_dtype
from gradwire.codecs.native.choice import without_kernels
from gradwire.codecs.options.quantized import LARGEST_BITS, LARGEST_ROTATION, THCOptions
from gradwire.codecs.shards import Shard
from gradwire.codecs.thc.blocks import cut, whole_blocks
from gradwire.codecs.thc.definition import Randomness
from gradwire.codecs.thc.hops import THCHops
from gradwire.codecs.thc.ranges import Ranges, block_root_mean_squares, bucket_root_mean_square
from gradwire.codecs.thc.table import QuantizationTable, neighbours, optimal_table, uniform_table
from gradwire.codecs.traits import About, Traits


@dataclass
class THC(THCOptions, LossyHopCodec):
    """Signs at random, a Hadamard transform per block, 4-bit integers, whose sums travel in 8 or 12 bits.

    Nothing is rounded on the way: the result is the mean of what the workers have quantized, on any topology.
    Biased by the clamping alone. Raises ValueError for settings outside their range.
    """

    about = About(
        group="quantized all-reduce",
        source="THC (NSDI 2024), as adapted in DynamiQ §5",
        wire_bits="8 for up to 8 workers, 12 for more, or `codec.bits`",
        metadata="largest norm of each block",
        unbiased_if="codec.t_p=√codec.block",
    )

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self), "codec")
        if self.block and (self.block.bit_count() != 1 or not 16 <= self.block <= LARGEST_ROTATION):
            raise ValueError(
                f"codec.block={self.block}: choose 0 or a power of two from 16 to {LARGEST_ROTATION}"
            )
        # Nothing is clamped then.
        unbiased = self.norm == "block" and 0 < self.block <= self.t_p**2
        self.traits = Traits(unbiased=unbiased, worst_vnmse=0.1)
        self._table = self._make_table()

    def _make_table(self) -> QuantizationTable:
        if self.table == "uniform":
            return uniform_table(self.quantization_bits)
        return optimal_table(self.quantization_bits, self.granularity, self.t_p)

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        refused = refused_dtype(self.name, layout)
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

    def plan(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> THCHops:
        return self._hops(x, this_round, reduced, num_chunks)

    def plan_scatter(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> THCHops:
        """Chunks are whole blocks, which are rotated back as such: small blocks make shards equally long."""
        bounds = whole_blocks(cut(x.numel(), self.block), num_chunks)
        return self._hops(x, this_round, reduced, num_chunks, bounds)

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        bounds = whole_blocks(cut(layout.numel, self.block), num_chunks)
        return Shard.between(*(min(bound, layout.numel) for bound in bounds[chunk : chunk + 2]))

    def _hops(
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
        return THCHops(x, this_round.size, num_chunks, bits, blocks, ranges, self._table, randomness, bounds)

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        """A worker loses of its own gradient alone, however large the sums; it must not lose all of it."""
        lost = self._table.expected_error(self.t_p)
        if lost < 1:
            return None
        return (
            f"a worker loses {lost:.2g} times the energy it quantizes; choose more than "
            f"codec.quantization_bits={self.quantization_bits}, or a smaller codec.t_p"
        )

    def costs(self, workers: int) -> Costs:
        """A rotation reaches beyond the cache or it does not."""
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
