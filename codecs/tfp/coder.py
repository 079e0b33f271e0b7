"""Slices of a bucket as truncated floating-point numbers, with or without block scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.coordinate_bits import CoordinateBits
from gradwire.codecs.groups import GroupCoder
from gradwire.codecs.tfp.formats import TruncatedFormat
from gradwire.codecs.tfp.scales import block_scales, scaled_down
from gradwire.codecs.tfp.truncation import restore, truncate


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

    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        scales = torch.empty(len(rows), 0, dtype=self.scale_dtype, device=rows.device)
        if self.scaled:
            scales = block_scales(rows, self.target.maximum, round_up=self.random is not None)
            rows = scaled_down(rows, scales)
        words = None if self.random is None else self.random.words(first, rows)
        return scales, truncate(rows, self.target, words)

    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        values = restore(codes, self.target)
        return values.mul_(scales.to(torch.float32)) if self.scaled else values
