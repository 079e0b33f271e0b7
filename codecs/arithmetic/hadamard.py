"""The normalized fast Walsh-Hadamard transform of rows, with a fixed order of additions.

Stage s = 0, 1, … of a row replaces the values a and b, 2^s apart, by a + b and a − b; after the last one
every value is multiplied by 1/√d. The pairs of values that are added, and therefore every bit of the result,
do not depend on how an implementation divides the work.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.native.call import run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.quantized import LARGEST_ROTATION


def hadamard_(rows: Tensor) -> Tensor:
    """Transform each row of `rows`, (m, d) contiguous float32 with d a power of two up to 2²⁴, in place.

    The matrix is symmetric and orthogonal: the transform is its own inverse up to rounding. Returns `rows`.
    """
    length = rows.shape[1]
    assert 0 < length <= LARGEST_ROTATION and not length & (length - 1), f"rows of {length} values"
    transform(rows)
    return rows


def transform(rows: Tensor) -> None:
    """Transform each row of `rows`, (m, d) contiguous float32, in place."""
    if rows.is_meta:  # it has no values
        return
    library, length = library_for(rows.device), rows.shape[1]
    if library is not None:
        numel = rows.numel()
        run(library, "hadamard_transform", rows.device, rows=(rows, numel), numel=numel, length=length)
        return
    rows.copy_(butterflies(rows, length) * constant(1 / math.sqrt(length), rows))


def butterflies(values: Tensor, length: int) -> Tensor:
    """The transform of every `length` consecutive values without its factor, √length times too large: float32
    of the shape of `values`, contiguous float32 of a multiple of `length`."""
    distance, result = 1, values
    while distance < length:
        first, second = result.view(-1, 2, distance).unbind(1)
        result = torch.stack((first + second, first - second), dim=1)
        distance *= 2
    return result.view(values.shape)
