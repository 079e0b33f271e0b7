"""A quantized buffer on the wire: one message with two sections, each a multiple of 16 bytes.

- Scales, one for each group, float32 or bfloat16; zeros up to a multiple of 16 bytes.
- Codes, two's complement, in the order of the coordinates: a byte each at 8 bits, at 4 bits two to a byte,
  the first in its low half. There are whole blocks of 32, so that a block's transform is there as a whole;
  the coordinates that fill up the last one are zeros (their codes are not, if they were transformed).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.options.quantized import BITS, GROUPS

BLOCK = 32
"""Coordinates that the smoother mixes; messages consist of whole ones."""

SCALES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class MessageFormat:
    """Bits of a code, coordinates of a group, type of a scale. Raises ValueError for what is not offered."""

    bits: int
    group: int
    scales: str

    def __post_init__(self) -> None:
        offers = {"bits": BITS, "group": GROUPS, "scales": tuple(SCALES)}
        for name, offered in offers.items():
            value = getattr(self, name)
            if value not in offered:
                raise ValueError(f"{name}={value}: choose one of {', '.join(map(str, offered))}")

    @property
    def peak(self) -> int:
        """The largest code; the smallest is its negative."""
        return int((1 << (self.bits - 1)) - 1)

    def num_groups(self, numel: int) -> int:
        """Groups of `numel` coordinates, the last one possibly partial."""
        return -(-numel // self.group)

    def scale_bytes(self, numel: int) -> int:
        """Bytes of the first section."""
        return -(-self.num_groups(numel) * SCALES[self.scales].itemsize // 16) * 16

    def code_bytes(self, numel: int) -> int:
        """Bytes of the second section."""
        return -(-numel // BLOCK) * BLOCK * self.bits // 8

    def num_bytes(self, numel: int) -> int:
        """Bytes of the message of `numel` coordinates."""
        return self.scale_bytes(numel) + self.code_bytes(numel)

    def split(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Scales, with their padding, and codes (uint8) as views of a message."""
        end = self.scale_bytes(numel)
        return message[:end].view(SCALES[self.scales]), message[end:]
