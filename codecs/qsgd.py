"""QSGD: a norm per group, and stochastic rounding to a few levels (Alistarh et al., NIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import (
    constant,
    exponents,
    group_sums,
    largest_magnitudes,
    normalizers,
    restorers,
)
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.costs import Costs, coder_costs, nearest
from gradwire.codecs.fields import between, check_fields, one_of
from gradwire.codecs.groups import GROUP_SIZES, GroupCoder
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.loading import Library
from gradwire.codecs.sums import SliceCodec
from gradwire.codecs.traits import About, Traits
from gradwire.codecs.wrappers.feedback import feedback_diverges

Norm = Literal["l2", "max"]

_DITHER_BITS = 16


def group_norms(rows: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of every row of (groups, group) float32, no less than any magnitude; the power of two that
    brings the largest magnitude near 1; and the norm of the row times it, 1 for want of one: (groups, 1)
    float32 each.

    First the norm, which is at least the largest magnitude; then the power of two that brings the largest
    magnitude near 1; then the norm times that power, or 1 if it would be 0. The norm is NaN where a
    coordinate is not finite or the norm exceeds float32's range.
    """
    largest = largest_magnitudes(rows)
    finite = largest.isfinite()
    field = exponents(largest.masked_fill(~finite, 0.0))
    normalizer = normalizers(field)
    normalized = largest * normalizer
    if norm == "l2":
        # PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
        normalized = group_sums((rows * normalizer).square_()).double().sqrt_().to(torch.float32)
    norms = normalized * restorers(field)
    norms.masked_fill_(~(finite & norms.isfinite()), torch.nan)
    return norms, normalizer, normalized.masked_fill_(~(norms > 0), 1.0)


@dataclass(frozen=True)
class LevelKernels:
    """The compiled `GroupKernels` of a `LevelCoder`."""

    coder: LevelCoder

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None = None
    ) -> None:
        values, size = readable(values), self.coder.num_bytes(values.numel())
        given = {"message_in": (message, size), "message_out": (out, size)}
        self._run(library, "levels_encode", values, first, values_in=(values, values.numel()), **given)

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        operation, numel = "levels_add" if add else "levels_decode", values.numel()
        received = (message, self.coder.num_bytes(numel))
        self._run(library, operation, values, 0, message_in=received, values_out=(values, numel))

    def _run(self, library: Library, operation: str, values: Tensor, first: int, **tensors: Any) -> None:
        coder = self.coder
        run(
            library,
            operation,
            values.device,
            **tensors,
            numel=values.numel(),
            first=first,
            group=coder.group,
            bits=coder.bits,
            l2=coder.norm == "l2",
            key0=coder.random.key[0],
            key1=coder.random.key[1],
            rank=coder.random.rank,
        )


@dataclass(frozen=True)
class LevelCoder(GroupCoder):
    """The magnitude in units of norm/s, s = 2^(bits − 1) − 1, rounded stochastically, and above it the sign.

    The norm is a float32; where it is NaN the whole group becomes NaN, and its codes are zeros. Unbiased to
    within 2⁻¹⁷ of a unit.
    """

    norm: Norm
    random: CoordinateBits

    @property
    def levels(self) -> int:
        """s."""
        return (1 << (self.bits - 1)) - 1

    @property
    def kernels(self) -> LevelKernels:
        return LevelKernels(self)

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        norms, normalizer, normalized = group_norms(rows, self.norm)
        rows = rows.masked_fill(norms.isnan(), 0.0)
        # Positions among levels in units of 2⁻¹⁶, to which a dither of as many bits is added. Also after
        # rounding none is above the last level's.
        last = constant(self.levels << _DITHER_BITS, rows)
        position = torch.minimum((rows.abs() * normalizer).mul_(last / normalized), last)
        position = position.add_(0.5).to(torch.int32)
        level = position.add_(self.random.dithers(first, rows)) >> _DITHER_BITS
        sign = (rows.view(torch.int32) >> (32 - self.bits)).bitwise_and_(self.levels + 1)
        return norms, level.bitwise_or_(sign)

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
class QSGD(SliceCodec):
    """Groups scaled by a norm of their own and quantized anew at every hop; sent once by everybody with
    `topology=broadcast`, as AQGB does.

    A value that is not finite makes its group NaN, and so does an l2 norm beyond float32's range. Raises
    ValueError for settings outside their range.
    """

    name: str = "qsgd"

    bits: int = between(2, 16, 8, hint="AQGB compares with 4 and 8")
    """The bits of a coordinate's code: a sign and 2^(bits − 1) − 1 levels above zero."""

    group: int = one_of(*GROUP_SIZES, default=512)
    """Coordinates that share a norm, a power of two. QSGD's word is bucket, which is something else here."""

    norm: str = one_of(*get_args(Norm), default="l2")
    """`l2`, which the paper analyses, or `max`, which has less variance at few bits."""

    traits = Traits(unbiased=True)
    about = About("QSGD (Alistarh et al., NIPS 2017)", "`codec.bits` + 32/`codec.group`")

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self), "codec")

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        share = lost_share(self.group, (1 << (self.bits - 1)) - 1, cast(Norm, self.norm))
        if not feedback_diverges(share, largest_sum):
            return None
        return (
            f"with codec.bits={self.bits}, codec.group={self.group} and codec.norm={self.norm} an encoding "
            f"loses {share:.2g} times the energy it encodes, too much for sums of {largest_sum} gradients; "
            f"choose more bits{' or codec.norm=max' if self.norm == 'l2' else ''}"
        )

    def coder(self, this_round: Round) -> LevelCoder:
        random = CoordinateBits(this_round.key, this_round.rank)
        return LevelCoder(self.group, self.bits, cast(Norm, self.norm), random)

    def costs(self, workers: int) -> Costs:
        """An l2 norm costs more than any number of bits does, and the receiver nothing."""
        decoding = f"levels.{nearest((2, 4, 8), self.bits)}"
        return coder_costs(workers, "levels.4.l2" if self.norm == "l2" else decoding, decoding)
