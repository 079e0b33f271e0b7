"""The options of the codecs that quantize linearly, as SDP4Bit does: `linear` and `all_to_all`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gradwire.codecs.fields import one_of

BITS = (4, 8)

GROUPS = (32, 64, 128, 256, 512, 1024, 2048)
"""Coordinates that share a scale: whole blocks, and whole groups in what a kernel treats at a time."""

ScaleType = Literal["float32", "bfloat16"]
LinearRounding = Literal["nearest", "stochastic"]


@dataclass
class LinearOptions:
    """What `Linear` can be told."""

    name: str = "linear"

    bits: int = one_of(*BITS)
    """Bits of a code: 4 or 8."""

    group: int = one_of(*GROUPS, default=128)
    """Coordinates that share a scale, a power of two."""

    scales: str = one_of(*get_args(ScaleType))
    """The type of a scale: `float32`, or `bfloat16`, rounded up."""

    hadamard: str = one_of("none", "fused")
    """`fused`: what is quantized is the Hadamard transform of every 32 coordinates (SDP4Bit §3.2.2)."""

    rounding: str = one_of(*get_args(LinearRounding))
    """`nearest`, or `stochastic`, which is unbiased."""


@dataclass
class AllToAllOptions:
    """What `AllToAll` can be told."""

    name: str = "all_to_all"

    bits_local: int = one_of(*BITS, default=8)
    """Bits of a code inside nodes: 4 or 8."""

    bits_node: int = one_of(*BITS, default=4)
    """Bits of a code between nodes: 4 or 8."""

    group: int = one_of(*GROUPS, default=128)
    """Coordinates that share a scale, a power of two."""

    scales: str = one_of(*get_args(ScaleType))
    """The type of a scale: `float32`, or `bfloat16`, rounded up."""

    hadamard: str = one_of("fused", "apart", "none")
    """The smoother: `fused` with quantization; `apart`, in passes of its own, with the same result but for
    rounding; or `none`."""

    rounding: str = one_of(*get_args(LinearRounding))
    """`nearest`, as in SDP4Bit, or `stochastic`, which is unbiased."""
