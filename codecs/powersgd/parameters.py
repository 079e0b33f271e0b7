"""Which parameters of a bucket are compressed, as matrices of what shape, and to what rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradwire.codecs.interface import Layout


@dataclass(frozen=True)
class Parameter:
    """Its place in the bucket and the (rows, columns) of the matrix it is seen as; uncompressed at rank 0."""

    name: str
    place: slice
    rows: int
    columns: int
    rank: int


def effective_rank(shape: Sequence[int], rank: int, min_compression_rate: float) -> int:
    """`rank`, at most that of the matrix; 0 if the parameter is no matrix or its factors save too little.

    The rule is torch's: rank · (rows + columns) · min_compression_rate < rows · columns.
    """
    if len(shape) < 2:
        return 0
    rows, columns = _matrix_shape(shape)
    rank = min(rank, rows, columns)
    return rank if rank * (rows + columns) * min_compression_rate < rows * columns else 0


def parameters_of(
    layout: Layout, rank_of: Callable[[str], int], min_compression_rate: float
) -> Iterator[Parameter]:
    """The parameters of a bucket in their order; `rank_of` gives the rank wanted for a name."""
    for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
        place = slice(offset, offset + math.prod(shape))
        rank = effective_rank(shape, rank_of(name), min_compression_rate)
        yield Parameter(name, place, *_matrix_shape(shape), rank)


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """A parameter as a matrix: its first dimension by all others."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
