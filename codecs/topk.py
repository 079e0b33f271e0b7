"""Top-k: every worker sends its own largest coordinates, as pairs of index and value, to all others.

Different workers choose different coordinates, so there are no partial sums: on any topology all ranks add up
the same messages in rank order. (Aji & Heafield, "Sparse communication for distributed gradient descent",
2017; with error feedback: Stich et al., "Sparsified SGD with memory", 2018.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.hop_codec import ReportsLosses
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.options.reduced import TopKOptions
from gradwire.codecs.step_memory import of_contraction
from gradwire.codecs.traits import About

WIRE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

_MAGNITUDE = 0x7FFF_FFFF
_INDEX_BYTES = 4


def selected_count(fraction: float, numel: int) -> int:
    """Number of coordinates for `fraction` of `numel`: at least one."""
    return max(round(fraction * numel), 1)


def largest_coordinates(x: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest magnitudes of (numel,) float32, ascending int64. NaN counts as larger
    than infinity; ties go to the earlier coordinate."""
    magnitudes = x.view(torch.int32).bitwise_and(_MAGNITUDE)
    smallest = magnitudes.topk(count, sorted=False).values.min()
    above, alike = magnitudes > smallest, magnitudes == smallest
    chosen = above | (alike & (alike.cumsum(0, dtype=torch.int32) <= count - above.sum()))
    return torch.nonzero_static(chosen, size=count)[:, 0]


@dataclass
class TopK(TopKOptions, Codec, ReportsLosses):
    """Each worker sends its `fraction` of coordinates with the largest magnitudes, at least one.

    The result is biased, so it is meant to be used with error feedback, which does not diverge: each worker
    loses only a part of its own gradient. A worker's coordinates that are not finite count as its largest and
    arrive unchanged, up to k of them. Raises ValueError for settings outside their range.
    """

    about = About(
        group="sparsifiers",
        source="Aji & Heafield 2017",
        wire_bits="64·`codec.fraction` (bf16: 48) to each other worker",
    )

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        refused = super().supports(topology, size, layout)
        if refused is not None:
            return refused
        if layout.numel >= 1 << 31:
            return f"codec={self.name} has indices of 32 bits for {layout.numel} coordinates of a bucket"
        return None

    def largest_residual(self, this_round: Round) -> float:
        share = selected_count(self.fraction, this_round.layout.numel) / this_round.layout.numel
        return max(super().largest_residual(this_round), of_contraction(share))

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        mean, _ = await self.synchronize_with_losses(x, this_round, comm)
        return mean

    async def synchronize_with_losses(
        self, x: Tensor, this_round: Round, comm: Collectives
    ) -> tuple[Tensor, Tensor]:
        losses = x.to(torch.float32, copy=True)
        total = torch.zeros_like(losses)
        own = self._encode(losses)
        for message in await comm.all_gather(own):
            index, values = self._decode(message)
            total[index] += values  # each index occurs once, so the order does not matter
        index, values = self._decode(own)
        losses[index] -= values
        return total.div_(constant(this_round.size, total)).to(x.dtype), losses

    def _encode(self, x: Tensor) -> Tensor:
        """The indices as int32, then the values: (k·(4 + bytes of a value),) uint8."""
        index = largest_coordinates(x, selected_count(self.fraction, x.numel()))
        parts = index.to(torch.int32), x[index].to(WIRE_DTYPES[self.values])
        return torch.cat([part.view(torch.uint8) for part in parts])

    def _decode(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """The indices as int64 and the values as float32, (k,) each."""
        dtype = WIRE_DTYPES[self.values]
        split = message.numel() // (_INDEX_BYTES + dtype.itemsize) * _INDEX_BYTES
        values = message[split:].view(dtype)
        return message[:split].view(torch.int32).to(torch.int64), values.to(torch.float32)
