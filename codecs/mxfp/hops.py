"""One round of an MXFP codec, whose partial sums never leave the element format (DynamiQ Appendix C), and
automatic scaling: the factor μ between a block's maximum and its scale (after FP8-LM).

A larger μ leaves room for sums but loses small elements. After a step, μ becomes twice the μ of that step if
the share of saturated casts exceeded ε, and is multiplied by γ otherwise. The share is taken over all hops
and ranks, which agree on it during the next step (see `adaptation`). So μ follows one step late, identically
on all ranks and for all buckets of a step.

Because of this delay, the rule doubles the μ of the step that overflowed, not the current one: when the
overflow becomes known, the next step has run at nearly the same μ and mostly overflowed, too. Doubling the
current μ would answer one overflow twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Agreed
from gradwire.codecs.arithmetic.bitpack import unpack
from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.collectives import align
from gradwire.codecs.hop_codec import LossyHops
from gradwire.codecs.interface import Decision
from gradwire.codecs.mxfp import definition
from gradwire.codecs.mxfp.definition import BLOCK, num_blocks
from gradwire.codecs.mxfp.formats import ElementFormat, SharedScales, values_of
from gradwire.codecs.slices import chunk_bounds

MU, COUNTS = "mu", "cast_counts"

FIRST_DECISION: Decision = {MU: (0.0, 0.0)}
"""μ of a step and of the step before it, 0 where there was none yet."""


LARGEST_MU = 1e30
"""No gradients make it grow so far: it doubles a step."""


@dataclass
class CastCount:
    """Counts of one rank in one round: its number of `casts`, and how many of these `saturated` (an int64
    scalar on the device)."""

    saturated: Tensor
    casts: int = 0


class CastCounts:
    """The cast counts of a step, round by round. Captured rounds count at a place of their bucket."""

    def __init__(self) -> None:
        self._rounds: list[CastCount] = []
        self._places: dict[str, CastCount] = {}
        self._launched: dict[str, CastCount] = {}

    def of_round(self, device: torch.device) -> CastCount:
        """The counter of a new round of the current step."""
        self._rounds.append(CastCount(torch.zeros((), dtype=torch.int64, device=device)))
        return self._rounds[-1]

    def fix(self, bucket: str, device: torch.device) -> None:
        """Gives the captured rounds of a bucket their counter, which lasts."""
        if bucket not in self._places:
            self._places[bucket] = CastCount(torch.zeros((), dtype=torch.int64, device=device))

    def of_captured(self, bucket: str) -> CastCount:
        """The counter of a bucket's captured rounds, which each launch sets to zero first. Only the launches
        that `launched` states are counted."""
        count = self._places[bucket]
        count.saturated.zero_()
        count.casts = 0
        return count

    def launched(self, bucket: str) -> None:
        """States that the current step launches the bucket's captured round."""
        self._launched[bucket] = self._places[bucket]

    def total(self) -> Tensor:
        """The numbers of saturated casts and of all casts in the step so far, (2,) int64, without waiting for
        the device."""
        counts = torch.zeros(2, dtype=torch.int64, device="cpu")
        for each in (*self._rounds, *self._launched.values()):
            counts = counts.to(each.saturated.device)
            counts[0] += each.saturated
            counts[1] += each.casts
        return counts

    def forget(self) -> None:
        """Reset the counts for a new step."""
        self._rounds.clear()
        self._launched.clear()


@dataclass(frozen=True)
class AutomaticScaling:
    """The rule by which μ adapts, with its parameters ε, γ and the smallest μ."""

    epsilon: float
    gamma: float
    minimum: float

    def mu(self, decision: Decision, workers: int) -> float:
        """The μ of a step that follows `decision`; the first one is the number of workers."""
        return pair_of(decision)[0] or max(float(workers), self.minimum)

    def decide(self, agreed: Agreed) -> Decision:
        """The decision after a step: the μ of the next step, and the μ of the step that ends."""
        used, counted = self.mu(agreed.decision, agreed.size), pair_of(agreed.decision)[1]
        share, following = self.overflow(agreed), used
        if share is not None:
            risen, fallen = max(2 * counted, used), max(self.gamma * used, self.minimum)
            following = risen if share > self.epsilon else fallen
        return {MU: (following, used)}

    def overflow(self, agreed: Agreed) -> float | None:
        """The reduced share of saturated casts; None if there were no casts."""
        saturated, casts = agreed.feedback[COUNTS].tolist()
        return saturated / casts if casts else None

    def logged(self, agreed: Agreed) -> Mapping[str, float]:
        """The μ of the step that ends, and the share of saturated casts that was reduced during it."""
        return {"mu": self.mu(agreed.decision, agreed.size), "overflow": self.overflow(agreed) or 0.0}


def pair_of(decision: Decision) -> Sequence[float]:
    """The two factors of a decision: the next step's μ and that of the step before."""
    return cast(Sequence[float], decision.get(MU, FIRST_DECISION[MU]))


BLOCKS_PER_UNIT = 2
"""Chunk boundaries are multiples of two blocks, 48 bytes at 6 bits: only the last message needs padding."""


class MXFPHops(LossyHops):
    """Partial sums as packed elements: a chunk's message is its slice of the sums. The scales are the same
    for the whole round."""

    def __init__(
        self,
        x: Tensor,
        size: int,
        num_chunks: int,
        element: ElementFormat,
        scales: SharedScales,
        count: CastCount,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to."""
        self._x, self._numel, self._dtype, self._element = x, x.numel(), x.dtype, element
        self._size = size
        self._lost: CastLosses | None = None
        self._scales, self._count = scales, count
        self._bounds = chunk_bounds(num_blocks(x.numel()), num_chunks, BLOCKS_PER_UNIT)
        self._offsets = tuple(align(bound * definition.block_bytes(element)) for bound in self._bounds)
        self._sums = torch.empty(self._offsets[-1], dtype=torch.uint8, device=x.device)
        used = self._bounds[-1] * definition.block_bytes(element)
        self._sums[used:].zero_()
        definition.quantize(x, scales, element, self._sums, count.saturated)
        count.casts += self._numel

    def _own(self, message: Tensor, chunks: range) -> Tensor:
        """The packed sums of `chunks`, as many bytes as `message`."""
        assert message.numel() == self.message_bytes(chunks, 1), "message length differs from message_bytes()"
        return self._sums[self._offsets[chunks.start] : self._offsets[chunks.stop]]

    def message_bytes(self, chunks: range, workers: int) -> int:
        return self._offsets[chunks.stop] - self._offsets[chunks.start]

    def message_offsets(self) -> tuple[int, ...]:
        return self._offsets

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        out.copy_(self._own(out, chunks))

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        own = self._own(message, chunks)
        lost = self._lost
        exact = None if lost is None else lost.values(own) + lost.values(message)
        definition.add(own, message, self._element, self._count.saturated)
        if lost is not None and exact is not None:
            lost.add(self._bounds[chunks.start], exact, own)
        first, last = (min(self._bounds[c] * BLOCK, self._numel) for c in (chunks.start, chunks.stop))
        self._count.casts += last - first

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        self._own(message, chunks).copy_(message)
        if self._lost is not None:  # what is added from now on, in a broadcast, all ranks add alike
            self._lost.share = 1 / self._size

    def finish(self) -> Tensor:
        mean = torch.empty(self._numel, dtype=self._dtype, device=self._sums.device)
        definition.dequantize(self._sums, self._scales, self._element, mean)
        return mean

    def shard(self, chunks: Sequence[int]) -> Tensor:
        found = [torch.empty(0, dtype=torch.float32, device=self._sums.device)]
        for chunk in chunks:
            blocks = slice(*self._bounds[chunk : chunk + 2])
            first, last = (min(bound * BLOCK, self._numel) for bound in (blocks.start, blocks.stop))
            mean = torch.empty(last - first, dtype=torch.float32, device=self._sums.device)
            if first < last:
                own = self._sums[self._offsets[chunk] : self._offsets[chunk + 1]]
                scales = replace(self._scales, maxima=self._scales.maxima[blocks])
                definition.dequantize(own, scales, self._element, mean)
            found.append(mean)
        return torch.cat(found)

    def keep_losses(self) -> None:
        self._lost = CastLosses(self._x, self._sums, self._scales, self._element, self._size)

    def losses(self) -> Tensor:
        assert self._lost is not None, "losses() without keep_losses()"
        return self._lost.total()


class CastLosses:
    """Losses in the gradient's units, (numel,) float32: `own` of the first cast, `of_sums` in elements."""

    def __init__(
        self, x: Tensor, sums: Tensor, scales: SharedScales, element: ElementFormat, size: int
    ) -> None:
        """`sums` are the packed elements that `x`, (numel,) of a floating dtype, has been cast to."""
        self._scales, self._element, self._size = scales, element, size
        own = torch.empty(x.numel(), dtype=torch.float32, device=x.device)
        definition.dequantize(sums, scales, element, own)
        self._own = x.to(torch.float32) - own * constant(size, own)
        blocks = scales.maxima.numel()
        self._of_sums = torch.zeros(blocks * BLOCK, dtype=torch.float32, device=x.device)
        self.share = 1.0
        """The part of what sums lose that is this worker's: 1/size where all add up the same messages."""

    def values(self, packed: Tensor) -> Tensor:
        """The elements of packed blocks as float32; bytes after the last whole block are ignored."""
        size = definition.block_bytes(self._element)
        whole = packed[: packed.numel() // size * size]
        return values_of(unpack(whole, self._element.width), self._element)

    def add(self, first_block: int, exact: Tensor, packed: Tensor) -> None:
        """Add the losses of casting `exact`, the sums of the blocks from `first_block` on, to `packed`."""
        lost = (exact - self.values(packed)) * self.share
        places = self._of_sums[first_block * BLOCK :][: lost.numel()]
        places += lost[: places.numel()]

    def total(self) -> Tensor:
        """All losses so far."""
        means = definition.restored(self._of_sums, self._scales.of(self._element))[: self._own.numel()]
        return self._own + means * constant(self._size, means)
