"""Buckets that are too small for slots: sums in bfloat16, rounded at random and so unbiased."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import PER_COUNTER, WORD, Key, halves, philox4x32
from gradwire.codecs.slices import SliceCoder

_PURPOSE = 5
"""The third word of the counters of random bits; `draws` has smaller ones."""


@dataclass(frozen=True)
class DitheredBF16(SliceCoder):
    """Slices of bfloat16 numbers of the worker `rank`: each is one of the two nearest ones, such that the
    mean is right."""

    key: Key
    rank: int
    unit = PER_COUNTER

    def num_bytes(self, numel: int) -> int:
        return 2 * numel

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        numel, device = values.numel(), values.device
        counter = first // PER_COUNTER + torch.arange(-(-numel // PER_COUNTER), device=device)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        words = philox4x32((counter & WORD, zero + self.rank, zero + _PURPOSE, zero), self.key)
        drawn = halves(words).view(-1)[:numel].to(torch.int64)
        pattern = values.contiguous().view(torch.int32).to(torch.int64) & WORD
        rounded = pattern + drawn >> 16
        plain = values.to(torch.bfloat16)
        found = torch.where(rounded >= 1 << 15, rounded - (1 << 16), rounded).to(torch.int16)
        out.view(torch.bfloat16).copy_(torch.where(values.isfinite(), found.view(torch.bfloat16), plain))

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        return message.view(torch.bfloat16).to(torch.float32)
