"""TFP's operators of PyTorch: one payload encoded, decoded, and added to sums."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.coordinate_bits import CoordinateBits
from gradwire.codecs.native.operators import operator
from gradwire.codecs.tfp.coder import coder_of


@operator(
    "tfp_encode(Tensor values, int first, int bits, str base, bool stochastic, int key0, int key1, int rank, "
    "Tensor(a!) out) -> ()"
)
def tfp_encode(
    values: Tensor,
    first: int,
    bits: int,
    base: str,
    stochastic: bool,
    key0: int,
    key1: int,
    rank: int,
    out: Tensor,
) -> None:
    """Encode (numel,) floating-point `values`, the bucket's coordinates from `first` on, to all of `out`."""
    random = CoordinateBits((key0, key1), rank) if stochastic else None
    coder_of(bits, base, random).encode(values, first, out)


@operator(
    "tfp_add_encode(Tensor message, Tensor sums, int first, int bits, str base, bool stochastic, int key0, "
    "int key1, int rank, Tensor(a!) out) -> ()"
)
def tfp_add_encode(
    message: Tensor,
    sums: Tensor,
    first: int,
    bits: int,
    base: str,
    stochastic: bool,
    key0: int,
    key1: int,
    rank: int,
    out: Tensor,
) -> None:
    """Encode the sum of (numel,) float32 `sums` and what `message` stands for to all of `out`."""
    random = CoordinateBits((key0, key1), rank) if stochastic else None
    coder_of(bits, base, random).accumulate_encode(message, first, sums, out)


@operator("tfp_decode(Tensor message, int bits, str base, Tensor(a!) values) -> ()")
def tfp_decode(message: Tensor, bits: int, base: str, values: Tensor) -> None:
    """Fill (numel,) float32 `values`."""
    coder_of(bits, base).decode_into(message, 0, values)


@operator("tfp_add(Tensor message, int bits, str base, Tensor(a!) sums) -> ()")
def tfp_add(message: Tensor, bits: int, base: str, sums: Tensor) -> None:
    """Add to (numel,) float32 `sums`."""
    coder_of(bits, base).accumulate(message, 0, sums)
