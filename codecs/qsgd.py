"""QSGD: a norm per group, and stochastic rounding to a few levels (Alistarh et al., NIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from gradwire.codecs.checks import check_choice, check_range
from gradwire.codecs.coordinate_bits import CoordinateBits
from gradwire.codecs.feedback import feedback_diverges
from gradwire.codecs.floats import constant, fold
from gradwire.codecs.groups import GROUP_SIZES, GroupCoder
from gradwire.codecs.interface import About, Layout, LossyHopCodec, Round
from gradwire.codecs.sums import SumHops

Norm = Literal["l2", "max"]


def group_norms(rows: Tensor, norm: Norm) -> Tensor:
    """Norm of every row of (groups, group) float32: (groups, 1) float32, no less than any magnitude.

    NaN where a coordinate is not finite or the norm exceeds float32's range. In float64, squares of float32
    neither overflow nor vanish.
    """
    if norm == "max":
        norms = rows.abs().amax(dim=1, keepdim=True)
    else:
        norms = fold(rows.to(torch.float64).square_()).sqrt_().to(torch.float32)[:, None]
    return norms.masked_fill_(~norms.isfinite(), torch.nan)


@dataclass(frozen=True)
class LevelCoder(GroupCoder):
    """The magnitude in units of norm/s, s = 2^(bits − 1) − 1, rounded stochastically, and above it the sign.

    The norm is a float32; where it is NaN the whole group becomes NaN. Unbiased to within 2⁻²⁴ of a unit.
    """

    norm: Norm
    random: CoordinateBits

    @property
    def levels(self) -> int:
        """s."""
        return (1 << (self.bits - 1)) - 1

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        norms = group_norms(rows, self.norm)
        # After rounding, too, |x|/norm ≤ 1 and s times it ≤ s. A group that is NaN is sent as zeros.
        position = (rows.abs() / norms.masked_fill(norms == 0, 1.0)).mul_(float(self.levels)).nan_to_num_(0.0)
        level = position.floor()
        level += self.random.uniforms(first, rows) < position.sub_(level)
        sign = (rows.view(torch.int32) >> (32 - self.bits)).bitwise_and_(self.levels + 1)
        return norms, level.to(torch.int32).bitwise_or_(sign)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        signed = torch.where(codes > self.levels, (self.levels + 1) - codes, codes)
        return signed.to(torch.float32).mul_(scales / constant(self.levels, scales))


def lost_share(group: int, levels: int, norm: Norm) -> float:
    """ω of `LevelCoder`: the energy that it loses, relative to what it encodes, where residuals are encoded.

    With the l2 norm positions are uniform within a level, or ω is above 1 in any case. With the maximum it
    was measured, in groups of 8 to 4096 coordinates.

    Along chains of 1 to 32 workers with normal and heavy-tailed gradients, residuals grew without bound only
    where ω ≥ 1: with the l2 norm and 4 bits at once. Elsewhere they settled, where this refuses error
    feedback at 5 to 10⁸ times the energy of the gradients, and where it does not at 10 times at most, but
    50 times in long groups of a heavy tail and, with one level and every worker's own message sent to all,
    group/8 times.
    """
    if norm == "l2":
        return group / (6 * levels**2)
    return group / (group + 8) if levels == 1 else 2 / levels**2


@dataclass
class QSGD(LossyHopCodec):
    """Groups scaled by a norm of their own and quantized anew at every hop; sent once by everybody with
    `topology=broadcast`, as AQGB does.

    A value that is not finite makes its group NaN, and so does an l2 norm beyond float32's range. Raises
    ValueError for settings outside their range.
    """

    name: str = "qsgd"

    bits: int = 8
    """Of a coordinate's code: a sign and 2^(bits − 1) − 1 levels above zero."""

    group: int = 512
    """Coordinates that share a norm, a power of two. QSGD's word is bucket, which is something else here."""

    norm: str = "l2"
    """`l2`, which the paper analyses, or `max`, which has less variance at few bits."""

    unbiased = True
    about = About("QSGD (Alistarh et al., NIPS 2017)", "`codec.bits` + 32/`codec.group`")

    def __post_init__(self) -> None:
        check_range(self, "bits", 2, 16, "AQGB compares with 4 and 8")
        check_choice(self, "group", GROUP_SIZES)
        check_choice(self, "norm", get_args(Norm))

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        share = lost_share(self.group, (1 << (self.bits - 1)) - 1, cast(Norm, self.norm))
        if not feedback_diverges(share, largest_sum):
            return None
        return (
            f"with codec.bits={self.bits}, codec.group={self.group} and codec.norm={self.norm} an encoding "
            f"loses {share:.2g} times the energy it encodes, too much for sums of {largest_sum} gradients; "
            f"choose more bits{' or codec.norm=max' if self.norm == 'l2' else ''}"
        )

    def plan(self, x: Tensor, round: Round, reduced: list[Tensor], num_chunks: int) -> SumHops:
        coder = LevelCoder(self.group, self.bits, cast(Norm, self.norm), CoordinateBits.of(round))
        return SumHops(x, round.size, num_chunks, coder)
