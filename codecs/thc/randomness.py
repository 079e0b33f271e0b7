"""What is random in a round: the signs before the rotation, the same on all workers, and each worker's own
dither. Both are functions of seed, step, the bucket's uid and the coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.random import Key, halves, philox4x32
from gradwire.codecs.thc.blocks import UNIT

_SHARED = 0
"""The stream of the signs; worker r's dither is stream r + 1."""


@dataclass(frozen=True)
class Randomness:
    """One worker's, in one round; `key` comes from seed, step and the bucket's uid."""

    key: Key
    rank: int

    def flip_signs_(self, values: Tensor, first: int) -> None:
        """Flip the signs of (m,) float32 `values` in place, coordinates `first` and following, each with
        probability ½; flipping twice changes nothing. `first` and m are multiples of 128."""
        units, zero = _units(values, first)
        words = torch.stack(philox4x32((units, zero + _SHARED, zero, zero), self.key), dim=1)
        bit = torch.arange(32, dtype=torch.int32, device=values.device)
        flips = (words.to(torch.int32)[:, :, None] << bit).bitwise_and_(-(1 << 31))
        values.view(torch.int32).bitwise_xor_(flips.view(-1))

    def dither(self, values: Tensor, first: int) -> Tensor:
        """An odd multiple of 2⁻¹⁷, uniform on (0, 1), for each of (m,) `values`: (m,) float32."""
        units, zero = _units(values, first)
        part = torch.arange(UNIT // 8, device=values.device)
        words = philox4x32((units[:, None], zero + self.rank + 1, part, zero), self.key)
        return halves(words).view(-1).to(torch.float32).add_(0.5).mul_(2.0**-16)


def _units(values: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The indices of the units of 128 coordinates, (m/128,) int64, and a zero."""
    start = first // UNIT
    units = torch.arange(start, start + values.numel() // UNIT, device=values.device)
    return units, torch.zeros((), dtype=torch.int64, device=values.device)
