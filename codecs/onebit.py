"""1-bit SGD: the sign of each coordinate, and the values that the two signs are decoded to (Seide et al.,
Interspeech 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import (
    exponents,
    group_sums,
    largest_magnitudes,
    normalizers,
    restorers,
)
from gradwire.codecs.costs import Costs, coder_costs
from gradwire.codecs.interface import Round
from gradwire.codecs.options.quantized import OneBitOptions
from gradwire.codecs.slices import GroupCoder, SliceCodec
from gradwire.codecs.traits import About


@dataclass(frozen=True)
class SignCoder(GroupCoder):
    """One bit per coordinate, set if it is negative, and for every group two float32: the mean of the
    coordinates that are not negative, and the mean of those that are.

    A mean of no coordinates is 0. Both are NaN if a coordinate of the group is not finite.
    """

    family = "signs"

    @property
    def scales_per_group(self) -> int:
        return 2

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        negative = rows < 0
        counts = torch.full((len(rows),), self.group, device=rows.device)
        counts[-1] -= rows.numel() - numel
        below = negative.sum(dim=1)
        counts = torch.stack((counts - below, below), dim=1).clamp_(min=1).to(torch.float32)
        largest = largest_magnitudes(rows)
        finite = largest.isfinite()
        field = exponents(largest.masked_fill(~finite, 0.0))
        scaled = rows * normalizers(field)
        parts = scaled.masked_fill(negative, 0.0), scaled.masked_fill(~negative, 0.0)
        means = torch.cat([group_sums(part) for part in parts], dim=1).div_(counts) * restorers(field)
        # Of magnitudes near float32's largest the rounded sum may be too large by its last bit.
        means = torch.where(means.abs() > largest, largest.copysign(means), means)
        means.masked_fill_(~finite, torch.nan)
        return means, negative.to(torch.int32)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        return torch.where(codes > 0, scales[:, 1:], scales[:, :1])


@dataclass
class OneBit(OneBitOptions, SliceCodec):
    """Each coordinate becomes the mean of its block's coordinates of the same sign, where zeros count as
    positive; this is repeated at every hop. Meant to be used with `codec.ef=true`, as 1-bit SGD does.

    It loses 36 % of the energy of normally distributed coordinates, and nearly all of the energy if a few
    coordinates are large. In experiments error feedback never diverged. With normal and heavy-tailed
    gradients that never change, residuals settled at 5 to 100 times the gradients' norm, in blocks of 64 and
    512, on a single worker as well as among 32 along a ring; with new gradients in every round, at 1 to 14
    times.

    A value that is not finite makes its block NaN. Raises ValueError for settings outside their range.
    """

    about = About(
        "1-bit SGD (Seide et al., Interspeech 2014)", "1 + 64/`codec.block`", group="sign and ternary"
    )

    def largest_residual(self, this_round: Round) -> float:
        return 100.0

    def coder(self, this_round: Round) -> SignCoder:
        return SignCoder(self.block, bits=1)

    def costs(self, workers: int) -> Costs:
        return coder_costs(workers, "signs.1")
