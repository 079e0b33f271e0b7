"""Random rounding of float32's first bits that planes can refine (AQGB §4.4, equation 5).

The paper rounds what it truncates, and sends the bits that follow later. Both together would be wrong: the
bits that follow are those after the truncated value, not after the next one above it, which may have been
sent. So what is cut here is the coordinate's pattern plus the random integer that rounds it, as large as the
bits that the first stage drops. Its first bits are the rounded value, and every receiver can draw the same
integer. After a refinement it subtracts those bits of the integer that have arrived with the pattern. What
remains is the coordinate rounded at the longer truncation by the integer's last bits: equation 5 at every
length, exact at 32 bits. A coordinate has 16 random bits. The mean is right to within 2⁻¹⁷ of the first
stage's last bit, at every length, and 16 bits later rounding is towards zero.

All of it is integer arithmetic on patterns, in PyTorch on every device. Compiled kernels cut and decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import PER_COUNTER, CoordinateBits

INFINITE, MAGNITUDE, SIGN = 0x7F80_0000, 0x7FFF_FFFF, -0x8000_0000
"""Patterns of float32 as int32: of infinity, of all bits but the sign, of the sign."""

AT_ONCE = 1 << 20
"""Coordinates whose integers are drawn together, which bounds the memory that this takes."""


@dataclass(frozen=True)
class RandomRounding:
    """One worker's random rounding at `bits`, 10 to 31, of one block's coordinates from `first` on."""

    random: CoordinateBits
    bits: int
    first: int = 0

    def dithered(self, x: Tensor) -> Tensor:
        """The patterns to cut, of (numel,) `x`, which is not changed: (numel,) float32.

        Magnitudes above the largest of `bits` are clamped to it, so that none is rounded to infinity. What is
        not finite stays as it is.
        """
        out = x.to(torch.float32, copy=True)
        last = (INFINITE >> (32 - self.bits)) - 1 << (32 - self.bits)
        for own, integers in self._chunks(out):
            magnitude = own & MAGNITUDE
            rounded = magnitude.clamp(max=last) + integers | own & SIGN
            own.copy_(torch.where(magnitude < INFINITE, rounded, own))
        return out

    def restore_(self, values: Tensor, bits: int) -> None:
        """Turns decoded patterns of `bits` bits, (numel,) float32, into the rounded values, in place."""
        if bits == self.bits:
            return
        arrived = -1 << (32 - bits)
        for own, integers in self._chunks(values):
            finite = (own & MAGNITUDE) < INFINITE
            own.sub_((integers & arrived).masked_fill_(~finite, 0))

    def _chunks(self, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of the patterns of (numel,) float32 `values`, and their random integers: both int32."""
        patterns = values.view(torch.int32)
        for first in range(0, len(patterns), AT_ONCE):
            own = patterns[first : first + AT_ONCE]
            padded = -(-len(own) // PER_COUNTER) * PER_COUNTER
            like = torch.empty(padded, dtype=torch.int8, device=values.device)
            integers = self.random.words(self.first + first, like)[: len(own)] >> self.bits
            yield own, integers.to(torch.int32)
