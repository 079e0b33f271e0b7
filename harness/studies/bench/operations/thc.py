"""The Walsh-Hadamard transform, and THC's operations: norms of blocks, integers, means."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.codecs.thc.blocks import cut, uniform_table
from gradwire.codecs.thc.definition import BlockQuantizer, Randomness
from gradwire.codecs.thc.ranges import Ranges, block_root_mean_squares, write_root_mean_squares
from gradwire.harness.studies.bench.operation import Case, Operation

KEY, T_P, WORKERS, TABLE = (0x1234_5678, 0x9ABC_DEF0), 2.154, 8, uniform_table(4)

BLOCKS = {"largest": 0, "1024": 1024}
"""Coordinates that are rotated together: as many as possible, or few."""


def operations() -> Iterator[Operation]:
    for length in (1024, 1 << 18):
        make = partial(_transform, length)
        yield Operation(f"hadamard.transform.{length}", ("hadamard_transform",), make, dtypes=("float32",))
    for label, block in BLOCKS.items():
        squares = partial(_root_mean_squares, block)
        yield Operation(f"thc.root_mean_squares.{label}", ("thc_root_mean_squares",), squares)
        yield Operation(f"thc.quantize.{label}", ("thc_quantize",), partial(_quantize, block))
        yield Operation(f"thc.dequantize.{label}", ("thc_dequantize",), partial(_dequantize, block))


def _transform(length: int, x: Tensor) -> Case:
    """Transforms the bucket's whole rows in place; a short bucket has shorter rows."""
    length = min(length, 1 << (x.numel().bit_length() - 1))
    rows = x[: x.numel() // length * length].clone().view(-1, length)
    return Case(lambda: hadamard_(rows), (rows,), (rows,))


def _root_mean_squares(block: int, x: Tensor) -> Case:
    squares = block_root_mean_squares(x, cut(x.numel(), block))
    return Case(lambda: write_root_mean_squares(x, block, squares), (x,), (squares,))


def _quantized(block: int, x: Tensor) -> tuple[BlockQuantizer, Tensor]:
    """The quantizer of the bucket, and its integers, int32."""
    blocks = cut(x.numel(), block)
    ranges = Ranges(block_root_mean_squares(x, blocks), T_P)
    quantizer = BlockQuantizer(blocks, ranges, TABLE, Randomness(KEY, 0))
    integers = torch.empty(blocks.total, dtype=torch.int32, device=x.device)
    quantizer.quantize(x, integers)
    return quantizer, integers


def _quantize(block: int, x: Tensor) -> Case:
    quantizer, integers = _quantized(block, x)
    read = (x, quantizer.ranges.root_mean_squares)
    return Case(lambda: quantizer.quantize(x, integers), read, (integers,))


def _dequantize(block: int, x: Tensor) -> Case:
    quantizer, integers = _quantized(block, x)
    sums, mean = integers.mul_(WORKERS), torch.empty(len(integers), dtype=x.dtype, device=x.device)
    read = (sums, quantizer.ranges.root_mean_squares)
    return Case(lambda: quantizer.dequantize(sums, WORKERS, mean), read, (mean,))
