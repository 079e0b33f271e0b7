"""The random bits of a round: 16 for every coordinate and purpose, the same whenever they are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.random import PER_COUNTER, WORD, Key, halves, philox4x32
from gradwire.codecs.options.dynamiq import SUPER_GROUP

_ROUNDING, _STRATUM, _DITHER, _SHIFT = 0, 2, 3, 4
"""Third words of the counters: private to a worker, shared by all, shared, private. 1 is not used."""


@dataclass(frozen=True)
class Draws:
    """The random bits of the worker `rank` in a round. Super-groups are given by their places in the bucket,
    −1 where there is none."""

    key: Key
    rank: int

    def _of(self, super_groups: Tensor, rank: int, purpose: int, turn: int = 0) -> Tensor:
        per_row = SUPER_GROUP // PER_COUNTER
        each = torch.arange(per_row, device=super_groups.device)
        counter = super_groups.reshape(-1, 1).clamp(min=0) * per_row + each
        zero = torch.zeros((), dtype=torch.int64, device=super_groups.device)
        words = philox4x32((counter & WORD, zero + rank, zero + purpose, zero + turn), self.key)
        return halves(words).view(*super_groups.shape, SUPER_GROUP)

    def strata(self, super_groups: Tensor, index: int, count: int) -> Tensor:
        """Numbers in (0, 1) to add before rounding down, float32: in the stratum of the worker `index` of
        `count`, which differs from those of the others in every coordinate."""
        first = self._of(super_groups, 0, _STRATUM).to(torch.int64) * count >> 16
        within = self._of(super_groups, self.rank, _ROUNDING)
        place = ((first + index) % count << 16) + within
        return between_0_and_1(place, count)

    def dither(self, super_groups: Tensor) -> Tensor:
        """Numbers in (0, 1) that all ranks know, float32."""
        return between_0_and_1(self._of(super_groups, 0, _DITHER), 1)

    def below(self, super_groups: Tensor, shift: Tensor, turn: int) -> Tensor:
        """Natural numbers below 2^shift, int64; `shift` has a number for each super-group. Every `turn` has
        others."""
        drawn = self._of(super_groups, self.rank, _SHIFT, turn).to(torch.int64)
        return (drawn << shift[..., None]) >> 16


def between_0_and_1(place: Tensor, count: int) -> Tensor:
    """(place + ½)/(count·2¹⁶) as float32, below 1."""
    each = constant(1 / (count << 16), place)
    return ((place.to(torch.float32) + 0.5) * each).clamp(max=1 - 2**-24)
