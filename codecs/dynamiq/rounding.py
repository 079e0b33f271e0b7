"""The dither that decides which way a coordinate is rounded (DynamiQ §3.4).

Correlated: among the n workers' uniforms for one coordinate exactly one falls into each of the n intervals
[k/n, (k + 1)/n), so that errors of a sum cancel. Worker i's interval is (σ(i) + s) mod n: σ is the rank of
its hash among the workers' hashes for this super-group, s a shift all workers share for this coordinate.
Within the interval the workers differ by a private 16-bit key per group. Independent: 16 private bits a
coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key, halves, mix32, philox4x32
from gradwire.codecs.options.dynamiq import SUPER_GROUP, Rounding

MAX_WORKERS = 256
"""Dithers are integers below n·2¹⁶ that must be exact in float32."""

_RESOLUTION = 1 << 16


@dataclass(frozen=True)
class Keys:
    """One worker's randomness for some super-groups, as far as it is not per coordinate.

    `super_groups` (rows,) int64 are their indices in the bucket, `order` (rows,) int32 is σ·2¹⁶, `within`
    (rows, groups) int32 the 16-bit key within an interval, `scale_noise` (rows, groups) int32 an integer
    below 2¹⁶.
    """

    super_groups: Tensor
    order: Tensor
    within: Tensor
    scale_noise: Tensor

    def __getitem__(self, rows: slice) -> Keys:
        return Keys(self.super_groups[rows], self.order[rows], self.within[rows], self.scale_noise[rows])


@dataclass(frozen=True)
class Dither:
    """The randomness of one worker in one round; `key` comes from seed, step and the bucket's uid, `group` is
    the number of coordinates that share a scale, `key_place` is `Round.key_place`."""

    key: Key
    rank: int
    workers: int
    rounding: Rounding
    group: int = 16
    key_place: Tensor | None = None

    @property
    def range(self) -> int:
        """N: dithers are integers in [0, N)."""
        return _RESOLUTION * (self.workers if self.rounding == "correlated" else 1)

    def private_words(self, super_groups: Tensor) -> Tensor:
        """32 bits per group that only this worker uses, (rows, groups) int64: the low half is the key within
        an interval, the high half rounds the group's scale."""
        base = mix32(super_groups ^ self.key[1])[:, None] + self.key[0]
        group = torch.arange(SUPER_GROUP // self.group, device=super_groups.device) * 0xC2B2_AE35
        return mix32(base + (self.rank + 1) * 0x85EB_CA6B + group)

    def worker_order(self, super_groups: Tensor) -> Tensor:
        """σ: this worker's place in an order of the workers drawn for each super-group, (rows,) int64."""
        base = mix32(super_groups ^ self.key[0]) + self.key[1]
        worker = torch.arange(self.workers, device=super_groups.device)[:, None]
        hashes = mix32(base + worker * 0x27D4_EB2F) & ~0xFF | worker  # ties: by worker
        return (hashes < hashes[self.rank]).sum(dim=0)

    def keys(self, super_groups: Tensor) -> Keys:
        """The keys of (rows,) int64 super-group indices."""
        words = self.private_words(super_groups)
        shift = self.worker_order(super_groups).to(torch.int32) << 16
        return Keys(super_groups, shift, (words & 0xFFFF).to(torch.int32), (words >> 16).to(torch.int32))

    def coordinate_bits(self, super_groups: Tensor, stream: int) -> Tensor:
        """16 bits per coordinate of (rows,) int64 super-group indices: (rows, 256) int32. Stream 0 is
        shared by all workers, stream rank + 1 is private."""
        zero = torch.zeros((), dtype=torch.int64, device=super_groups.device)
        block = torch.arange(SUPER_GROUP // 8, device=super_groups.device)
        return halves(philox4x32((super_groups[:, None], zero + stream, block, zero), self.key))

    def integers(self, keys: Keys) -> Tensor:
        """The dither V of every coordinate, uniform on [0, N): (rows, 256) int32; u = (V + ½)/N."""
        if self.rounding == "independent":
            return self.coordinate_bits(keys.super_groups, self.rank + 1)
        shared = self.coordinate_bits(keys.super_groups, 0)
        interval = (shared * self.workers + keys.order[:, None]) % self.range
        return interval ^ keys.within.repeat_interleave(self.group, dim=1)

    def centred(self, keys: Keys) -> Tensor:
        """V + ½ − N/2 as float32, exactly: symmetric about 0, so that its negative is the mirrored dither."""
        return self.integers(keys).to(torch.float32) - (self.range - 1) / 2
