"""The options of the codecs that send some of the coordinates: `topk`, `randomk`, OmniReduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gradwire.codecs.fields import between, one_of

WireType = Literal["fp32", "bf16"]

WIRE_BITS = 16
"""Bits of a coordinate that OmniReduce sends."""


@dataclass
class TopKOptions:
    """What `TopK` can be told."""

    name: str = "topk"

    fraction: float = between(1e-6, 1, 0.01, hint="0.01 sends one coordinate of a hundred")
    """The share of a bucket's coordinates that each worker sends, rounded to a whole number of them."""

    values: str = one_of(*get_args(WireType))
    """How values travel: `fp32` or `bf16`."""


@dataclass
class RandomKOptions:
    """What `RandomK` can be told."""

    name: str = "randomk"

    fraction: float = between(1e-6, 1, 0.01, hint="0.01 sends one coordinate of a hundred")
    """The share of a bucket's coordinates that are sent, rounded to a whole number of them."""

    values: str = one_of(*get_args(WireType))
    """How values travel: `fp32` or `bf16`, which is rounded to nearest at every hop."""

    unbiased_scaling: bool = False
    """Multiply by coordinates per coordinate sent: right on average. Error feedback wants it `false`."""


@dataclass
class OmniReduceOptions:
    """What `OmniReduce` can be told."""

    name: str = "omnireduce"

    bits: float = between(0.01, WIRE_BITS, 8.0, hint="8 sends half of the blocks, 16 all")
    """Bits of bfloat16 values on the wire per coordinate, in the mean over rounds; the mask adds
    1/`block`."""

    block: int = between(1, 1 << 20, 256, hint="256 as in the paper")
    """Coordinates of a block (the paper's chunk)."""

    gamma: float = between(0, 1, 0.8, hint="0.8 as in the paper; 1 leaves k as it is")
    """The share of k that a round leaves as it is."""
