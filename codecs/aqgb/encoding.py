"""The numbers that AQGB sends the first bits of, and how further bits refine them (AQGB §4.4).

`embedded`: fixed-point multiples of a scale for 32 coordinates. Every truncation is a prefix of every longer
one, so that refinements are planes from 2 to 32 bits. `plain`, as the paper prints it: the first bits of
float32 from 10 bits on, and with fewer bits those of a smaller format, fp16, E4M3 or E2M1, as in `codec=tfp`.
The bits of a smaller format are no prefix of float32's. So a payload of less than 10 bits is refined by
sending float32's first bits anew, 10 of them or more, which planes then follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.casts import Cast
from gradwire.codecs.slices import SliceCoder
from gradwire.codecs.tfp.coder import FirstBitsCoder, coder_of, plane_bytes
from gradwire.codecs.tfp.definition import SCALED_BITS

FULL = 32
"""Bits per coordinate where a block is sent as it is."""

SINGLE = 10
"""The fewest bits that are float32's in the plain base."""


@dataclass(frozen=True)
class Encoding:
    """A `base`, and the formats of the plain one that have block scales (`options.quantized.Scale`)."""

    base: str = "embedded"
    scale: str = "block"

    def coder(self, bits: int, random: CoordinateBits | None = None) -> SliceCoder:
        """The coder of a first stage of `bits`; it rounds with `random`, otherwise towards zero. Raises
        ValueError for random rounding in the embedded base."""
        if bits == FULL:
            return Cast(torch.float32)
        if self.base == "plain" and bits <= SCALED_BITS[self.scale]:
            return coder_of(bits, "scaled", random)
        return coder_of(bits, self.base, random)

    def refined_coder(self, bits: int) -> FirstBitsCoder:
        """The coder of a payload that refinements have extended to `bits`."""
        return coder_of(bits, self.base)

    def begins_anew(self, bits: int) -> bool:
        """True if a payload of `bits` is refined by sending float32's first bits, not those that follow."""
        return self.base == "plain" and bits < SINGLE

    def least_more(self, bits: int) -> int:
        """The fewest bits that refine a payload of `bits`."""
        return SINGLE if self.begins_anew(bits) else 1

    def refined(self, bits: int, more: int) -> int:
        """The bits of a payload of `bits` once `more` bits have been sent."""
        return more if self.begins_anew(bits) else bits + more

    def payload_bytes(self, numel: int, bits: int) -> int:
        """Bytes of a first stage of `bits`, scales included."""
        return self.coder(bits).num_bytes(numel)

    def refinement_bytes(self, numel: int, bits: int, refined: int) -> int:
        """Bytes that refine `numel` coordinates from `bits` to `refined` bits."""
        if self.begins_anew(bits):
            return self.refined_coder(refined).num_bytes(numel)
        return plane_bytes(numel, bits, refined)


EMBEDDED = Encoding()
PLAIN = Encoding("plain")
