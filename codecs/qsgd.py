"""QSGD: a norm per group, and stochastic rounding to a few levels (Alistarh et al., NIPS 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import pack, packed_bytes, unpack
from gradwire.codecs.arithmetic.floats import (
    constant,
    exponents,
    group_sums,
    largest_magnitudes,
    normalizers,
    restorers,
)
from gradwire.codecs.arithmetic.random import CoordinateBits, shared_bits
from gradwire.codecs.costs import Cost, Costs, coder_costs, moved, nearest, sum_costs
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.native.loading import Library
from gradwire.codecs.options.quantized import Norm, QSGDOptions
from gradwire.codecs.slices import GroupCoder, SliceCodec, SliceCoder
from gradwire.codecs.traits import About, Traits
from gradwire.codecs.wording import spelled
from gradwire.codecs.wrappers.feedback import feedback_diverges

_DITHER_BITS = 16


def group_norms(rows: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """For every row of (groups, group) float32, (groups, 1) float32 each: its norm, at least its largest
    magnitude; the power of two that scales the largest magnitude near 1; and the norm times that power, or 1
    if that would be 0.

    The norm is NaN if a coordinate is not finite or the norm exceeds float32's range.
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


def top_level(bits: int) -> int:
    """s, the number of levels above zero that codes of `bits` bits have."""
    return (1 << (bits - 1)) - 1


def level_codes(values: Tensor, normalizer: Tensor, normalized: Tensor, dithers: Tensor, bits: int) -> Tensor:
    """Codes < 2^bits of finite float32 `values`, given the `group_norms` of their groups: int32 of the same
    shape. `dithers` holds an integer below 2¹⁶ for each value."""
    # Positions among levels in units of 2⁻¹⁶, to which a 16-bit dither is added. Even with rounding errors no
    # position exceeds the last level's.
    levels = top_level(bits)
    last = constant(levels << _DITHER_BITS, values)
    position = torch.minimum((values.abs() * normalizer).mul_(last / normalized), last)
    position = position.add_(0.5).to(torch.int32)
    level = position.add_(dithers) >> _DITHER_BITS
    sign = (values.view(torch.int32) >> (32 - bits)).bitwise_and_(levels + 1)
    return level.bitwise_or_(sign)


def level_values(codes: Tensor, norms: Tensor, bits: int) -> Tensor:
    """The values of int32 `codes`, float32 of the same shape, given the `norms` of their groups."""
    levels = top_level(bits)
    signed = torch.where(codes > levels, (levels + 1) - codes, codes)
    return signed.to(torch.float32).mul_(norms / constant(levels, norms))


@dataclass(frozen=True)
class LevelCoder(GroupCoder):
    """The magnitude in units of norm/s, s = 2^(bits − 1) − 1, rounded stochastically, and the sign in the bit
    above.

    The norm is a float32; where it is NaN the whole group becomes NaN, and its codes are zeros. Unbiased to
    within 2⁻¹⁷ of a unit.
    """

    norm: Norm
    random: CoordinateBits

    family = "levels"

    def settings(self, library: Library, first: int) -> dict[str, Any]:
        norm = {"bits": self.bits, "l2": self.norm == "l2"}
        return {**super().settings(library, first), "first": first, **norm, **self.random.fields()}

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        norms, normalizer, normalized = group_norms(rows, self.norm)
        rows = rows.masked_fill(norms.isnan(), 0.0)
        return norms, level_codes(rows, normalizer, normalized, self.random.dithers(first, rows), self.bits)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        return level_values(codes, scales, self.bits)


@dataclass(frozen=True)
class PairCoder(SliceCoder):
    """Level codes of two widths, the wider one by chance (AQGB §2.2: "2-8bit").

    Of every two neighbours, coordinates 2i and 2i + 1, a random bit that all workers share gives the wider
    code to one and the narrower code to the other. So each coordinate has either width with probability one
    half, and a slice's length is the same in every round. Both widths of a group share one norm.

    A message is the stream of the wider codes, that of the narrower ones, and the norms, float32. Only the
    packing has compiled kernels.
    """

    group: int
    bits: tuple[int, int]
    """The narrower one first."""

    norm: Norm
    random: CoordinateBits

    @property
    def _whole(self) -> int:
        """The smallest number of coordinates, a multiple of the group, whose codes of either width take whole
        bytes."""
        return max(self.group, 16)

    @property
    def unit(self) -> int:
        return self._whole * (16 // math.gcd(16, self.num_bytes(self._whole)))

    def num_bytes(self, numel: int) -> int:
        return packed_bytes(-(-numel // 2), sum(self.bits)) + 4 * -(-numel // self.group)

    def _parts(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views of the bytes of the wider codes, which must be aligned at 16 bits, of the narrower codes and
        of the norms."""
        (narrow, wide), pairs = self.bits, -(-numel // 2)
        between, end = packed_bytes(pairs, wide), packed_bytes(pairs, narrow + wide)
        return message[:between], message[between:end], message[end:]

    def _wider_first(self, first: int, like: Tensor) -> Tensor:
        """True where the first of two neighbours has the wider code: bool of the shape of `like`, which has
        an element for every pair from coordinate `first` on."""
        return shared_bits(self.random.key, first // 2, like.numel(), like.device).view(like.shape)

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        """Encode `values`, (numel,) of any floating dtype."""
        numel = values.numel()
        padded = torch.nn.functional.pad(values.to(torch.float32), (0, -numel % self._whole))
        rows = padded.view(-1, self.group)
        norms, normalizer, normalized = group_norms(rows, self.norm)
        rows = rows.masked_fill(norms.isnan(), 0.0)
        one, other = rows.view(len(rows), -1, 2).unbind(-1)
        dither, other_dither = self.random.dithers(first, rows).view(len(rows), -1, 2).unbind(-1)
        chosen = self._wider_first(first, one)
        *parts, scales = self._parts(out, numel)
        for part, bits, own in zip(parts, reversed(self.bits), (chosen, ~chosen), strict=True):
            dithers = torch.where(own, dither, other_dither)
            codes = level_codes(torch.where(own, one, other), normalizer, normalized, dithers, bits)
            pack(codes.view(-1)[: part.numel() // bits * 8], bits, part)
        scales.copy_(norms.view(-1)[: scales.numel() // 4].view(torch.uint8))

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        *parts, scales = self._parts(message, numel)
        groups = -(-numel // self._whole) * self._whole // self.group
        norms = message.new_zeros(groups, dtype=torch.float32)
        norms.view(torch.uint8)[: scales.numel()] = scales
        decoded = []
        for part, bits in zip(parts, reversed(self.bits), strict=True):
            codes = unpack(part, bits)
            codes = torch.nn.functional.pad(codes, (0, groups * self.group // 2 - codes.numel()))
            decoded.append(level_values(codes.view(groups, -1), norms[:, None], bits))
        wide, narrow = decoded
        chosen = self._wider_first(first, wide)
        pairs = (torch.where(chosen, wide, narrow), torch.where(chosen, narrow, wide))
        return torch.stack(pairs, dim=-1).view(-1)[:numel]


_PAIR_ENCODE, _PAIR_DECODE = 400.0, 95.0
"""Bytes per coordinate that the tensor operations of a `PairCoder` read and write, packing apart, as counted
in both norms to within a tenth; most are those of random bits."""


def pair_costs(workers: int, bits: tuple[int, int]) -> Costs:
    """Costs of a `PairCoder`: half of the coordinates are packed in either width; all else is tensor
    arithmetic."""

    def packing(name: str) -> Cost:
        both = (Cost({f"bitpack.{name}.{nearest((3, 4, 8, 12), each)}": 0.5}) for each in bits)
        return sum(both, Cost())

    encode, decode = packing("pack") + moved(_PAIR_ENCODE), packing("unpack") + moved(_PAIR_DECODE)
    add = decode + moved(12)
    return sum_costs(workers, encode, add, decode + moved(8), add + encode)


def lost_share(group: int, levels: int, norm: Norm) -> float:
    """ω of `LevelCoder`: the share of the encoded energy that it loses while residuals are encoded.

    With the l2 norm positions are uniform within a level, or ω is above 1 anyway. With the maximum ω was
    measured, in groups of 8 to 4096 coordinates.

    Along chains of 1 to 32 workers with normal and heavy-tailed gradients, residuals grew without bound only
    where ω ≥ 1: with the l2 norm and 4 bits at once. For other settings they settled. Where this rule refuses
    error feedback, they settled at 5 to 10⁸ times the energy of the gradients. Where it accepts it, they
    settled at 10 times at most, with two exceptions: 50 times in long groups with a heavy tail, and group/8
    times with one level and messages broadcast to all workers.
    """
    if norm == "l2":
        return group / (6 * levels**2)
    return group / (group + 8) if levels == 1 else 2 / levels**2


@dataclass
class QSGD(QSGDOptions, SliceCodec):
    """Groups scaled by their own norm and quantized anew at every hop; `topology=broadcast` sends each rank's
    message once to all, as AQGB does.

    A value that is not finite makes its group NaN, and so does an l2 norm beyond float32's range. Raises
    ValueError for settings outside their range.
    """

    about = About(
        "QSGD (Alistarh et al., NIPS 2017)",
        "`codec.bits`, or the mean of two, + 32/`codec.group`",
        group="quantized all-reduce",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.traits = Traits(unbiased=True, worst_vnmse=0.4)
        if min(self.widths) == 2:  # TernGrad's errors, with the l2 norm up to √group times larger
            worst = 30.0 if self.norm == "max" else math.inf
            self.traits = Traits(unbiased=True, worst_vnmse=worst, large_error="one level beside zero")

    @property
    def widths(self) -> tuple[int, ...]:
        """The bits of codes, the narrower first: one number or two."""
        return tuple(self.bits) if isinstance(self.bits, Sequence) else (self.bits,)

    def refuses_capture(self, layout: Layout) -> str | None:
        if len(self.widths) == 2:
            return f"codec.bits={spelled(self.bits)} has no compiled kernels"
        return super().refuses_capture(layout)

    def refuses_feedback(self, largest_sum: int, layout: Layout) -> str | None:
        """Refuses error feedback where `lost_share`, averaged over the two widths if there are two, is too
        large.

        With [2,8] on 2 to 4 workers, measured as for `lost_share`, accepted settings kept residuals below 10
        times the gradients' energy, except 60 times with the maximum of 512 coordinates along a ring.
        """
        norm = cast(Norm, self.norm)
        shares = [lost_share(self.group, top_level(bits), norm) for bits in self.widths]
        share = sum(shares) / len(shares)
        if not feedback_diverges(share, largest_sum):
            return None
        return (
            f"with codec.bits={spelled(self.bits)}, codec.group={self.group} and codec.norm={self.norm} an "
            f"encoding loses {share:.2g} times the energy it encodes, too much for sums of {largest_sum} "
            f"gradients; choose more bits{' or codec.norm=max' if self.norm == 'l2' else ''}"
        )

    def coder(self, this_round: Round) -> LevelCoder | PairCoder:
        random = CoordinateBits(this_round.key, this_round.rank, this_round.key_place)
        norm = cast(Norm, self.norm)
        if len(self.widths) == 2:
            narrow, wide = self.widths
            return PairCoder(self.group, (narrow, wide), norm, random)
        return LevelCoder(self.group, self.widths[0], norm, random)

    def costs(self, workers: int) -> Costs:
        """Costs of the hops; the l2 norm adds to encoding, more than any number of bits, and nothing to
        decoding."""
        if len(self.widths) == 2:
            narrow, wide = self.widths
            return pair_costs(workers, (narrow, wide))
        decoding = f"levels.{nearest((2, 4, 8), self.bits)}"
        return coder_costs(workers, "levels.4.l2" if self.norm == "l2" else decoding, decoding)
