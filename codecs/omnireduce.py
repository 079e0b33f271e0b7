"""OmniReduce as DynamiQ adapts it to multi-hop all-reduce: chunked top-k (DynamiQ §5, Appendix C).

A block is a run of consecutive coordinates that are sent together or not at all (the paper's chunk). This
module defines the energies of blocks, which compiled kernels reproduce, the choice of blocks, and the masks
that tell other ranks of it.

OmniReduce's workers send their own largest blocks to a server. Along a ring a partial sum would have more
blocks with every hop. So all workers first agree on the union of the blocks that each would send, and then
sum these blocks in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, unpacked
from gradwire.codecs.arithmetic.floats import exponents, fold, normalizers, restorers
from gradwire.codecs.casts import SelectedHops
from gradwire.codecs.collectives import Op
from gradwire.codecs.costs import COPY, UNION, Costs, exact_costs, moved, once
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.reduced import WIRE_BITS, OmniReduceOptions
from gradwire.codecs.shards import Shard
from gradwire.codecs.slices import chunk_bounds, chunk_slice
from gradwire.codecs.step_memory import Memories, StepMemory, of_contraction
from gradwire.codecs.traits import About, Traits

SPAN = 256
"""Coordinates summed in float32, scaled by one power of two; the spans of a block are added in float64."""

PARTIAL_SUMS = 32
"""Spans of a block this far apart go to the same partial sum."""


def num_blocks(numel: int, block: int) -> int:
    """Blocks of `block` coordinates in a bucket, the last one possibly partial."""
    return -(-numel // block)


def block_energies(x: Tensor, block: int) -> Tensor:
    """The squared l2 norm of every block of `x`, (numel,) of a floating dtype: (blocks,) float64.

    Infinite for blocks with a coordinate that is not finite, and only for these; otherwise accurate to a
    relative 10⁻⁶, however large or small the values are. Equal blocks have equal energies on all machines and
    in all implementations.
    """
    energies = torch.empty(num_blocks(x.numel(), block), dtype=torch.float64, device=x.device)
    write_energies(readable(x), block, energies)
    return energies


def write_energies(x: Tensor, block: int, energies: Tensor) -> None:
    """Fill `energies`, float64 (blocks,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        blocks = (energies, num_blocks(x.numel(), block))
        run(
            library,
            "block_energies",
            x.device,
            x=(x, x.numel()),
            numel=x.numel(),
            block=block,
            energies=blocks,
        )
        return
    spans = _spans(x.to(torch.float32), block)
    sums = _padded(_span_energies(spans), PARTIAL_SUMS).view(len(spans), -1, PARTIAL_SUMS)
    total = sums[:, 0]
    for each in range(1, sums.shape[1]):
        total = total + sums[:, each]
    energies.copy_(fold(total).nan_to_num(nan=torch.inf, posinf=torch.inf))


def _spans(x: Tensor, block: int) -> Tensor:
    """The blocks as (blocks, spans, width) zero-padded spans; the width is at most `SPAN`, and the smallest
    power of two that holds a shorter block. The padding changes no sum."""
    width = min(1 << (block - 1).bit_length(), SPAN)
    rows = _padded(torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block), width)
    return rows.view(rows.shape[0], -1, width)


def _padded(rows: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % multiple))


def _span_energies(spans: Tensor) -> Tensor:
    """The energies of spans: (blocks, spans) float64. With m a power of two near the span's largest
    magnitude: m²·Σ(x/m)², the sum in float32, the product exact."""
    rows = spans.flatten(0, 1)
    field = exponents(rows.abs().amax(dim=1))
    squares = fold((rows * normalizers(field)[:, None]).square())
    scale = restorers(field).double()
    return (squares.double() * scale * scale).view(spans.shape[:2])


def largest_blocks(energies: Tensor, count: int) -> Tensor:
    """Mask of the `count` blocks with the most energy, (blocks,) bool; ties go to the earlier block.

    Blocks that are not finite are always included, even if there are more than `count`.
    """
    chosen = energies.isinf()
    order = energies.sort(descending=True, stable=True).indices
    chosen[order[:count]] = True
    return chosen


def pack_mask(mask: Tensor) -> Tensor:
    """(blocks,) bool to (ceil(blocks / 8),) uint8, a bit per block; bits beyond the last block are 0."""
    return packed(torch.nn.functional.pad(mask.to(torch.int32), (0, -mask.numel() % 8)), 1)


def unpack_mask(stream: Tensor, blocks: int) -> Tensor:
    """The inverse of `pack_mask`."""
    return unpacked(stream, 1)[:blocks].bool()


class SomeBlocks:
    """The `CoordinateSelection` of some blocks of a bucket of `numel` coordinates."""

    factor = 1.0

    def __init__(self, chosen: Tensor, numel: int, block: int, device: torch.device) -> None:
        """`chosen` is (blocks,) bool on the host, where it determines the lengths of messages."""
        self._block, self._whole = block, numel // block
        self._rows = chosen[: self._whole].nonzero()[:, 0].to(device)
        has_partial = bool(chosen[self._whole :].any())
        self._partial = slice(self._whole * block, numel if has_partial else self._whole * block)
        self._before = [0, *(block * chosen[: self._whole].cumsum(0)).tolist()]

    def _whole_blocks(self, x: Tensor) -> Tensor:
        return x[: self._whole * self._block].view(self._whole, self._block)

    def take(self, x: Tensor) -> Tensor:
        rows = self._whole_blocks(x).index_select(0, self._rows)
        return torch.cat((rows.flatten(), x[self._partial]))

    def put(self, values: Tensor, into: Tensor) -> None:
        rows = self._rows.numel()
        whole, partial = values[: rows * self._block], values[rows * self._block :]
        self._whole_blocks(into).index_copy_(0, self._rows, whole.view(rows, self._block))
        into[self._partial] = partial

    def before(self, bounds: Sequence[int]) -> list[int]:
        """`bounds` must be multiples of the block size, except the end of the bucket."""
        sent = self._before[-1] + self._partial.stop - self._partial.start
        whole = self._whole * self._block
        return [self._before[bound // self._block] if bound <= whole else sent for bound in bounds]


_SORTED = 3500.0
"""Bytes that could be copied in the time it takes to sort a block's energy among 15,000: seen on a CPU."""

_PREFIX = "k/"


@dataclass
class OmniReduce(OmniReduceOptions, LossyHopCodec):
    """The union of all workers' k blocks of largest l2 norm, summed in bfloat16; all other blocks are zero.

    k follows the union's size (see `LocalK`), so that the union settles at `bits`/16 of the blocks. The
    lengths of messages depend on the union, so every bucket waits for one copy of the reduced mask to the
    host. The union is the same on all ranks. It always includes the blocks that are not finite on any worker,
    and these arrive unchanged. Raises ValueError for settings outside their range.

    Error feedback does not diverge: a worker always sends the k largest blocks of its gradient plus residual,
    and partial sums lose only bfloat16's rounding.
    """

    traits = Traits(stateful=True, worst_vnmse=0.6)
    about = About(
        group="sparsifiers",
        source="OmniReduce as adapted in DynamiQ §5, Appendix C",
        wire_bits="about `codec.bits`",
        metadata="mask of blocks of 256",
        state="k of every bucket",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._local = LocalK(self.bits / WIRE_BITS, self.gamma)
        self._counted: Mapping[str, float] = {}  # of the last step
        self.memories = Memories({_PREFIX: self._local.shares})

    def largest_residual(self, this_round: Round) -> float:
        # A worker's own k blocks are at least its part of a union of the wanted size.
        return max(
            super().largest_residual(this_round), of_contraction(self.bits / WIRE_BITS / this_round.size)
        )

    def statistics(self, x: Tensor, this_round: Round) -> list[tuple[Tensor, Op]]:
        energies = block_energies(x, self.block)
        count = self._local.blocks(this_round.layout.names[0], this_round.size, energies.numel())
        return [(pack_mask(largest_blocks(energies, count)), "or")]

    def plan_scatter(
        self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int
    ) -> SelectedHops:
        bounds = chunk_bounds(x.numel(), num_chunks, self.block)
        return self.plan(x, this_round, reduced, num_chunks, bounds)

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        return chunk_slice(layout.numel, num_chunks, chunk, self.block)

    def plan(
        self,
        x: Tensor,
        this_round: Round,
        reduced: list[Tensor],
        num_chunks: int,
        bounds: Sequence[int] | None = None,
    ) -> SelectedHops:
        total = num_blocks(x.numel(), self.block)
        union = unpack_mask(reduced[0].cpu(), total)
        self._local.follow(this_round.layout.names[0], this_round.size, int(union.sum()), total)
        blocks = SomeBlocks(union, x.numel(), self.block, x.device)
        return SelectedHops(x, this_round.size, num_chunks, blocks, torch.bfloat16, bounds)

    def end_step(self, step: int) -> Mapping[str, float]:
        """The union's and a worker's numbers of blocks over all buckets of the step, as shares of all
        blocks."""
        super().end_step(step)
        self._counted = self._local.counted()
        return self._counted

    def activity(self) -> Mapping[str, float]:
        """The share of blocks that were sent."""
        return {"blocks": self._counted["union"]} if self._counted else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._local.counted()

    def costs(self, workers: int) -> Costs:
        """Costs of a round: the energies of all blocks are sorted; the blocks of the union, at its target
        size, are gathered, summed in bfloat16 and scattered into zeros."""
        share = self.bits / WIRE_BITS
        parts = {label: cost * share for label, cost in exact_costs(workers, wire=2).items()}
        return {
            **parts,
            "statistics": once("omnireduce.energies.256") + moved(_SORTED / self.block),
            "metadata": moved(UNION / 8 / self.block),
            "plan": parts["plan"] + (COPY + COPY) * share,
            "finish": parts["finish"] + COPY * share + moved(4),
        }


class LocalK:
    """Number of blocks that each worker takes of a bucket, so that the union of all choices is as large as
    wanted (DynamiQ Appendix C, equation 1).

    Each round k ← γ·k + (1 − γ)·(K/K')·k, where K is `target` of the blocks and K' the number in the union; k
    stays between one block and all. It is stored as a share of the blocks, so that it stays valid when
    buckets change, under the name of a bucket's first parameter. It depends only on the sizes of unions, so
    all ranks compute the same k.
    """

    def __init__(self, target: float, gamma: float) -> None:
        self._target, self._gamma = target, gamma
        self.shares = StepMemory[Tensor]()  # () float64
        self._blocks = self._taken = self._united = 0

    def blocks(self, bucket: str, workers: int, total: int) -> int:
        """Number of blocks that a worker takes of the `total` blocks of a bucket."""
        if bucket not in self.shares:
            self._set(bucket, self._first_share(workers))
        return min(max(round(float(self.shares[bucket]) * total), 1), total)

    def _set(self, bucket: str, share: float) -> None:
        self.shares[bucket] = torch.tensor(share, dtype=torch.float64, device="cpu")

    def _first_share(self, workers: int) -> float:
        """The share that fills the target if workers choose independently. If their choices overlap, the
        union starts smaller and grows fast; a union that starts too large would shrink by at most 1 − γ per
        round."""
        unchosen: float = (1.0 - self._target) ** (1.0 / workers)
        return 1.0 - unchosen

    def follow(self, bucket: str, workers: int, union: int, total: int) -> None:
        """Adapt k to a round in which the union had `union` of `total` blocks."""
        taken, share = self.blocks(bucket, workers, total), float(self.shares[bucket])
        changed = self._gamma * share + (1.0 - self._gamma) * (self._target * total / union) * share
        self._set(bucket, min(max(changed, 1.0 / total), 1.0))
        self._blocks += total
        self._taken += taken
        self._united += union

    def counted(self) -> dict[str, float]:
        """k and the size of the union over all buckets since the last call, as shares of all blocks."""
        blocks, taken, united = self._blocks, self._taken, self._united
        self._blocks = self._taken = self._united = 0
        return {"k": taken / blocks, "union": united / blocks} if blocks else {}
