"""The normalized fast Walsh-Hadamard transform of rows, with a fixed order of additions.

Stage s = 0, 1, … of a row replaces the values a and b, 2^s apart, by a + b and a − b; after the last one
every value is multiplied by 1/√d. Which values meet, and with them every bit of the result, does not depend
on how the work is cut into tiles.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.codecs.floats import constant
from gradwire.codecs.native import hadamard as native
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

LARGEST = 1 << 24
"""Values of the longest row."""

TILE = 1 << 18
"""Values transformed at a time on a CPU: they and their copy, 2 MiB, stay near a core."""


def hadamard_(rows: Tensor) -> Tensor:
    """Transform each row of `rows`, (m, d) contiguous float32 with d a power of two up to 2²⁴, in place.

    The matrix is symmetric and orthogonal: the transform is its own inverse up to rounding. Returns `rows`.
    The default implementation allocates a tile on a CPU, a copy of `rows` on other devices.
    """
    length = rows.shape[1]
    assert 0 < length <= LARGEST and not length & (length - 1), f"rows of {length} values"
    transform(rows)
    return rows


@operator("hadamard_transform(Tensor(a!) rows) -> ()")
def transform(rows: Tensor) -> None:
    """Transform each row of `rows`, (m, d) contiguous float32, in place."""
    library = library_for(rows.device)
    if library is not None:
        native.hadamard_transform(library, rows)
        return
    length = rows.shape[1]
    tile = TILE if rows.device.type == "cpu" else max(rows.numel(), 1)
    near = min(length, tile)
    scratch = torch.empty(min(tile, rows.numel()), dtype=torch.float32, device=rows.device)
    scale = constant(1 / math.sqrt(length), rows)
    for part in torch.split(rows.view(-1, near, 1), tile // near):
        _butterflies(part, scratch, scale if near == length else None)
    if near < length:
        for row in torch.split(rows.view(-1, length // near, near), 1):
            for columns in torch.split(row, tile // row.shape[1], dim=2):
                _butterflies(columns, scratch, scale)


def _butterflies(x: Tensor, scratch: Tensor, scale: Tensor | None) -> None:
    """Transform (outer, n, inner) along the middle in place, then multiply by `scale` if there is one.

    Stages go back and forth between `x` and `scratch`, which is at least as large.
    """
    source, target = x, scratch[: x.numel()].view(x.shape)
    distance = 1
    while distance < x.shape[1]:
        pairs, results = (torch.unflatten(side, 1, (-1, 2, distance)) for side in (source, target))
        torch.add(pairs[:, :, 0], pairs[:, :, 1], out=results[:, :, 0])
        torch.sub(pairs[:, :, 0], pairs[:, :, 1], out=results[:, :, 1])
        source, target, distance = target, source, 2 * distance
    if scale is not None:
        torch.mul(source, scale, out=x)
    elif source is not x:
        x.copy_(source)
