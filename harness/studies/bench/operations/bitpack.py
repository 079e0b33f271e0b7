"""The bit streams used by all codecs: packing, unpacking, and adding to sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import add_and_pack, pack, packed_bytes, unpack_add, write_values
from gradwire.harness.studies.bench.operation import Case, Operation

WIDTHS = (1, 3, 4, 8, 12)

SUMS = 8
"""Bits of THC's sums, which are measured with buckets of either dtype."""


def operations() -> Iterator[Operation]:
    for bits in WIDTHS:
        dtypes = ("float32", "bfloat16") if bits == SUMS else ("float32",)
        for name, kernel, make in _OPERATIONS:
            yield Operation(f"bitpack.{name}.{bits}", (kernel,), partial(make, bits), dtypes=dtypes)


def _codes(bits: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The bucket as integers, (numel,) int32 padded to a multiple of eight, and as a packed stream
    (uint8).
    """
    numel = -(-x.numel() // 8) * 8
    codes = torch.arange(numel, dtype=torch.int32, device=x.device).bitwise_and_((1 << bits) - 1)
    packed = torch.empty(packed_bytes(numel, bits), dtype=torch.uint8, device=x.device)
    pack(codes, bits, packed)
    return codes, packed


def _pack(bits: int, x: Tensor) -> Case:
    codes, packed = _codes(bits, x)
    return Case(lambda: pack(codes, bits, packed), (codes,), (packed,))


def _unpack(bits: int, x: Tensor) -> Case:
    codes, packed = _codes(bits, x)
    return Case(lambda: write_values(packed, bits, codes), (packed,), (codes,))


def _add(bits: int, x: Tensor) -> Case:
    sums, packed = _codes(bits, x)
    return Case(lambda: unpack_add(packed, bits, sums), (packed, sums), (sums,))


def _add_pack(bits: int, x: Tensor) -> Case:
    codes, packed = _codes(bits, x)
    codes.zero_()  # or the sums would need more bits
    out = torch.empty_like(packed)
    return Case(lambda: add_and_pack(packed, bits, codes, out), (packed, codes), (out,))


_OPERATIONS = (
    ("pack", "pack_bits", _pack),
    ("unpack", "unpack_bits", _unpack),
    ("add", "add_bits", _add),
    ("add_pack", "add_and_pack_bits", _add_pack),
)
