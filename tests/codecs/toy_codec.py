"""A codec from outside the package: it sends every fourth coordinate of a sum in turn, the others later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.casts import Cast
from gradwire.codecs.hop_codec import HopCodec
from gradwire.codecs.interface import Round
from gradwire.codecs.registry import codec_classes, register_codec
from gradwire.codecs.slices import SliceCodec, SliceCoder, SumHops
from gradwire.codecs.traits import About, Traits


@dataclass(frozen=True)
class EveryFourth(SliceCoder):
    """Slices of which one coordinate in four is sent, as float32; which one depends on `turn`."""

    turn: int
    unit = 16

    def num_bytes(self, numel: int) -> int:
        return 4 * len(range(self.turn, numel, 4))

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        out.view(torch.float32).copy_(values[self.turn :: 4])

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        # A NaN is lost unless sent in its turn: a toy is of no use where it must be seen at once.
        decoded = torch.zeros(numel, dtype=torch.float32, device=message.device)
        decoded[self.turn :: 4] = message.view(torch.float32)
        return decoded


@dataclass
class Toy(SliceCodec):
    """Sends a quarter of the coordinates, another one every step."""

    name: str = "toy"
    phase: int = 0
    """The first phase."""

    about = About(source="a test", wire_bits="8")
    traits = Traits(shows_nonfinite=False)

    def coder(self, this_round: Round) -> EveryFourth:
        return EveryFourth((this_round.step + self.phase) % 4)


@dataclass
class OnlyHops(HopCodec):
    """Sums in bfloat16: hops, and nothing that its base class has a default for."""

    name: str = "only_hops"

    def hops(self, x: Tensor, this_round: Round, num_chunks: int) -> SumHops:
        return SumHops(x, this_round.size, num_chunks, Cast(torch.bfloat16))


for each in (Toy, OnlyHops):
    if each.name not in codec_classes():
        register_codec(each)
