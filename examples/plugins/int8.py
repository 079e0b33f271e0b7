"""A codec from outside: eight bits per coordinate, the scale of each message in front.

PYTHONPATH=examples/plugins python run.py size=tiny codec=int8:Int8 codec.levels=100
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import gradwire
from gradwire.codecs.slices import SliceCodec, SliceCoder


@dataclass(frozen=True)
class Coder(SliceCoder):
    """A slice in bytes: its scale as float32 in 16 bytes, then an int8 per coordinate."""

    levels: int
    unit = 16

    def num_bytes(self, numel: int) -> int:
        return 16 + numel

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        scale = values.abs().max() / self.levels  # not finite where a value is not, and seen by all
        steps = torch.where(scale > 0, values / scale, 0.0).nan_to_num()
        out[:16].zero_()
        out[:4].view(torch.float32).copy_(scale)
        out[16:].view(torch.int8).copy_(steps.round().clamp(-self.levels, self.levels))

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        return message[16 : 16 + numel].view(torch.int8) * message[:4].view(torch.float32)


@dataclass
class Int8(SliceCodec):
    """Rounds every partial sum to `2 levels + 1` equal steps."""

    name: str = "int8"
    levels: int = 127

    about = gradwire.About(source="an example", wire_bits="8")

    def coder(self, this_round: gradwire.Round) -> Coder:
        return Coder(self.levels)
