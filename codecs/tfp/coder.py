"""Slices of a bucket as truncated floating-point numbers, with or without block scales: coders, and the
operators of PyTorch that encode, decode and add one payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.groups import GroupCoder
from gradwire.codecs.tfp.definition import (
    BLOCK,
    WIDEST_SCALED,
    block_scales,
    embed,
    restore,
    restore_embedded,
    scaled_down,
    truncate,
)
from gradwire.codecs.tfp.formats import TruncatedFormat, truncated_format
from gradwire.codecs.tfp.native import TruncationKernels

Base = Literal["plain", "scaled", "embedded"]
"""What bits are of: coordinates in the format of as many bits (`formats`), their multiples of a block's
scale in that format, or these in the one base that has all numbers of bits (`embedded`)."""


@dataclass(frozen=True)
class TruncationCoder(GroupCoder):
    """Codes in the format `target` of the coordinates or, if `scaled`, of their multiples of a block's scale;
    rounded stochastically with `random`, towards zero without."""

    target: TruncatedFormat
    scaled: bool
    random: CoordinateBits | None

    scale_dtype = torch.bfloat16

    @property
    def scales_per_group(self) -> int:
        return 1 if self.scaled else 0

    @property
    def kernels(self) -> TruncationKernels:
        return TruncationKernels(self.bits, "scaled" if self.scaled else "plain", self.random)

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        scales = torch.empty(len(rows), 0, dtype=self.scale_dtype, device=rows.device)
        if self.scaled:
            scales = block_scales(rows, self.target.maximum, round_up=self.random is not None)
            rows = scaled_down(rows, scales)
        words = None if self.random is None else self.random.words(first, rows)
        return scales, truncate(rows, self.target, words)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        values = restore(codes, self.target)
        return values * scales.to(torch.float32) if self.scaled else values


@dataclass(frozen=True)
class EmbeddedCoder(GroupCoder):
    """Codes whose first bits are those of fewer bits, of multiples of a block's scale; towards zero."""

    scale_dtype = torch.bfloat16

    @property
    def kernels(self) -> TruncationKernels:
        return TruncationKernels(self.bits, "embedded", None)

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        scales = block_scales(rows, 1.0, round_up=True)
        return scales, embed(scaled_down(rows, scales), self.bits)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        return restore_embedded(codes, self.bits) * scales.to(torch.float32)


def coder_of(bits: int, base: str, random: CoordinateBits | None = None) -> GroupCoder:
    """The coder of `bits` of one of the `Base`s; rounded stochastically with `random`.

    Raises ValueError for what there is not.
    """
    if not 2 <= bits <= 32:
        raise ValueError(f"tfp: bits={bits}; choose 2 to 32")
    if base == "embedded":
        if random is not None:
            raise ValueError(
                "tfp: base=embedded is rounded towards zero, or its first bits would not be a prefix"
            )
        return EmbeddedCoder(BLOCK, bits)
    if base not in ("plain", "scaled"):
        raise ValueError(f"tfp: base={base}; choose plain, scaled or embedded")
    if base == "scaled" and bits > WIDEST_SCALED:
        raise ValueError(f"tfp: base=scaled has up to {WIDEST_SCALED} bits, got {bits}; choose base=plain")
    return TruncationCoder(BLOCK, bits, truncated_format(bits), base == "scaled", random)
