"""Linear quantization hop by hop: int4 or int8 codes and scales of groups, anew at every hop of any schedule.

On a ring this is how QSDP reduces gradients; its errors add up over P − 1 hops (SDP4Bit §2.3). QSDP's own
quantizer, which shifts its levels at random, is not implemented, because `rounding="stochastic"` is unbiased,
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.costs import COPY, Costs, sum_costs
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.linear.quantizer import LinearQuantizer, RoundingNoise, adding, dequantizing, quantizing
from gradwire.codecs.options.quantized import LinearOptions, LinearRounding, ScaleType
from gradwire.codecs.slices import SliceCodec, SliceCoder
from gradwire.codecs.traits import SCALED_FROM, About, Traits
from gradwire.codecs.wrappers.feedback import feedback_diverges


@dataclass(frozen=True)
class LinearCoder(SliceCoder):
    """Slices as messages of a `LinearQuantizer`; they begin with whole groups."""

    quantizer: LinearQuantizer
    noise: RoundingNoise | None

    @property
    def unit(self) -> int:
        """1: a message of any number of coordinates is padded to a multiple of 16 bytes."""
        return self.quantizer.group

    def num_bytes(self, numel: int) -> int:
        return self.quantizer.message_bytes(numel)

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        self.quantizer.quantize(values, out, self.noise, first)

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        values = torch.empty(numel, dtype=torch.float32, device=message.device)
        self.quantizer.dequantize(message, values)
        return values

    def decode_into(self, message: Tensor, first: int, values: Tensor) -> None:
        self.quantizer.dequantize(message, values)

    def accumulate(self, message: Tensor, first: int, sums: Tensor) -> None:
        self.quantizer.add(message, sums)

    def accumulate_encode(self, message: Tensor, first: int, sums: Tensor, out: Tensor) -> None:
        total = sums.clone()
        self.quantizer.add(message, total)
        self.encode(total, first, out)


@dataclass
class Linear(LinearOptions, SliceCodec):
    """int4 or int8 codes relative to the largest magnitude of every `group` coordinates, quantized anew at
    every hop; sent once by all ranks with `topology=broadcast`.

    A value that is not finite makes its group NaN. Raises ValueError for unsupported settings.
    """

    about = About(
        group="quantized all-reduce",
        source="SDP4Bit §2.2; on a ring QSDP's way",
        wire_bits="`codec.bits` + 32/`codec.group`",
        unbiased_if="codec.rounding=stochastic",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.traits = Traits(
            unbiased=self.rounding == "stochastic", smallest_magnitude=SCALED_FROM, worst_vnmse=0.3
        )

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        share = lost_share(self.bits, self.rounding == "stochastic")
        if not feedback_diverges(share, largest_sum):
            return None
        return (
            f"with codec.bits={self.bits} an encoding loses {share:.2g} times the energy it encodes, too "
            f"much for sums of {largest_sum} gradients; choose codec.bits=8"
        )

    @property
    def quantizer(self) -> LinearQuantizer:
        scales, rounding = cast(ScaleType, self.scales), cast(LinearRounding, self.rounding)
        return LinearQuantizer(self.bits, self.group, scales, self.hadamard == "fused", rounding)

    def coder(self, this_round: Round) -> LinearCoder:
        random = RoundingNoise(this_round.key, this_round.rank)
        return LinearCoder(self.quantizer, random if self.rounding == "stochastic" else None)

    def costs(self, workers: int) -> Costs:
        quantizer = self.quantizer
        encode, add = quantizing(quantizer), adding(quantizer)
        return sum_costs(workers, encode, add, dequantizing(quantizer), COPY + add + encode)


def lost_share(bits: int, stochastic: bool) -> float:
    """The share ω of the energy that an encoding loses while residuals are encoded: that of `qsgd.lost_share`
    for the same levels, and half of it with rounding to nearest."""
    return (2 if stochastic else 1) / ((1 << (bits - 1)) - 1) ** 2
