"""What a rank broadcasts of a block: the first bits of every coordinate, and later more of them.

Below 32 bits these are of the embedded base (`tfp.definition`), whose first bits are prefixes of all others:
a payload and the planes that follow it are, byte for byte, the payload of more bits. At 32 bits a block
travels as plain float32, because the embedded base is fixed point, and inexact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.casts import Cast
from gradwire.codecs.sums import SliceCoder
from gradwire.codecs.tfp.coder import coder_of
from gradwire.codecs.tfp.planes import plane_bytes, tfp_plane, tfp_refine

FULL = 32
"""Bits per coordinate where a block is sent as it is."""

BASE = "embedded"


def _coder(bits: int) -> SliceCoder:
    return Cast(torch.float32) if bits == FULL else coder_of(bits, BASE)


def payload_bytes(numel: int, bits: int) -> int:
    """Bytes of the first `bits` of `numel` coordinates, scales included."""
    return _coder(bits).num_bytes(numel)


def refinement_bytes(numel: int, bits: int, more: int) -> int:
    """Bytes of what takes `numel` coordinates from `bits` to `more` bits."""
    return plane_bytes(numel, bits, more)


@dataclass
class Payload:
    """The first `bits` of a block of `numel` coordinates: (payload_bytes,) uint8.

    What has been refined to 32 bits is `refined`: it has 32 bits of the embedded base, not of float32.
    """

    numel: int
    bits: int
    message: Tensor
    refined: bool = False

    @classmethod
    def of(cls, x: Tensor, bits: int) -> Payload:
        """The payload of (numel,) floating-point `x`, which is left as it was."""
        message = torch.empty(payload_bytes(x.numel(), bits), dtype=torch.uint8, device=x.device)
        _coder(bits).encode(x.to(torch.float32), 0, message)
        return cls(x.numel(), bits, message)

    def refine(self, plane: Tensor, more: int) -> None:
        """Takes in the plane that follows, (refinement_bytes,) uint8: it has `more` bits then."""
        size = coder_of(more, BASE).num_bytes(self.numel)
        joined = torch.empty(size, dtype=torch.uint8, device=plane.device)
        tfp_refine(self.message, plane, self.numel, self.bits, more, BASE, joined)
        self.bits, self.message, self.refined = more, joined, True

    def decode_into(self, values: Tensor) -> None:
        """Writes what it stands for to (numel,) float32 `values`."""
        self._own_coder().decode_into(self.message, 0, values)

    def add_to(self, sums: Tensor) -> None:
        """Adds what it stands for to (numel,) float32 `sums`."""
        self._own_coder().accumulate(self.message, 0, sums)

    def _own_coder(self) -> SliceCoder:
        return coder_of(self.bits, BASE) if self.refined else _coder(self.bits)


def plane_of(x: Tensor, bits: int, more: int) -> Tensor:
    """The bits of (numel,) `x` that `more` bits have beyond `bits`: (refinement_bytes,) uint8."""
    plane = torch.empty(plane_bytes(x.numel(), bits, more), dtype=torch.uint8, device=x.device)
    tfp_plane(x, bits, more, BASE, plane)
    return plane


def mean_of(parts: Sequence[Payload], device: torch.device) -> Tensor:
    """The mean of what all ranks have sent, added in their order: (numel,) float32."""
    first, *others = parts
    sums = torch.empty(first.numel, dtype=torch.float32, device=device)
    first.decode_into(sums)
    for part in others:
        part.add_to(sums)
    return sums.div_(constant(len(parts), sums))
