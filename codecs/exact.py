"""The uncompressed codecs: hop-wise sums in float32 or bfloat16.

BF16 is the reference of every comparison; it runs through the same hops as the quantizers. Its
partial sums are rounded to bfloat16 at each hop, as a bfloat16 all-reduce does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.costs import Costs, exact_costs
from gradwire.codecs.interface import LossyHopCodec, Round
from gradwire.codecs.sums import SliceCoder, SumHops
from gradwire.codecs.traits import About, Traits


@dataclass(frozen=True)
class Cast(SliceCoder):
    """Slices in another floating dtype."""

    dtype: torch.dtype
    unit = 8
    """16-byte aligned slices in bfloat16."""

    def num_bytes(self, numel: int) -> int:
        return numel * self.dtype.itemsize

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        out.view(self.dtype).copy_(values)

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        return message.view(self.dtype)


def exact_hops(x: Tensor, size: int, num_chunks: int, wire_dtype: torch.dtype) -> SumHops:
    """Partial sums of `x`, (numel,) of a floating dtype, sent as `wire_dtype`."""
    return SumHops(x, size, num_chunks, Cast(wire_dtype))


@dataclass
class FP32(LossyHopCodec):
    """Hop-wise sums in float32: exact up to rounding, 32 bits per coordinate."""

    name: str = "fp32"

    traits = Traits(unbiased=True)
    about = About("hop-wise float32 sums", "32")

    def plan(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> SumHops:
        return exact_hops(x, this_round.size, num_chunks, torch.float32)

    def costs(self, workers: int) -> Costs:
        return exact_costs(workers, wire=4)


@dataclass
class BF16(LossyHopCodec):
    """Hop-wise sums in bfloat16, rounded to nearest even at each hop: 16 bits per coordinate."""

    name: str = "bf16"

    about = About("hop-wise bfloat16 sums, the reference", "16")

    def plan(self, x: Tensor, this_round: Round, reduced: list[Tensor], num_chunks: int) -> SumHops:
        return exact_hops(x, this_round.size, num_chunks, torch.bfloat16)

    def costs(self, workers: int) -> Costs:
        return exact_costs(workers, wire=2)
