"""A second THC round, in numpy: a recursive transform, block by block, and Python's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from dynamiq_reference import philox_words

f32 = np.float32
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def cut(numel: int, block: int) -> list[tuple[int, int]]:
    """(start, length) of every block of a bucket padded to a multiple of 128."""
    blocks, start, total = list[tuple[int, int]](), 0, (numel + 127) // 128 * 128
    size = block or 1 << 24
    while start < total:
        while size > total - start:
            size //= 2
        blocks.append((start, size))
        start += size
    return blocks


def transform(row: Floats) -> Floats:
    """Walsh-Hadamard without normalization: both halves, then their sums and differences."""
    if len(row) == 1:
        return row
    first, second = np.split(row, 2)
    a, b = transform(first), transform(second)
    return np.concatenate([a + b, a - b])


def rotate(row: Floats) -> Floats:
    return transform(row) * f32(1 / math.sqrt(len(row)))


def pairwise(row: Floats) -> np.float32:
    """The sum, each value in the first half added to one in the second."""
    while len(row) > 1:
        first, second = np.split(row, 2)
        row = first + second
    return f32(row[0])


def exponent(x: np.float32) -> int:
    """e with 2^e ≤ x < 2^(e+1)."""
    return int(math.frexp(float(x))[1]) - 1


def root_mean_square(row: Floats) -> np.float32:
    maximum = f32(np.abs(row).max())
    if maximum == 0:
        return f32(0)
    e = exponent(maximum)
    squares = np.square(row * f32(2.0 ** (1 - e)))
    sums = squares
    while len(sums) > 1:
        sums = np.array([pairwise(part) for part in sums.reshape(-1, min(128, len(sums)))], f32)
    mean = sums[0] * f32(1 / len(row))
    return f32(np.sqrt(mean) * f32(0.5) * f32(2.0**e))


class Reference:
    """A round of all workers: `integers` of each, (workers, total), `sums`, and the `mean`."""

    def __init__(
        self,
        xs: Sequence[Floats],
        block: int,
        t_p: float,
        table: Sequence[int],
        key: tuple[int, int],
    ) -> None:
        self.key, self.table, self.blocks = key, table, cut(len(xs[0]), block)
        self.total = sum(size for _, size in self.blocks)
        rows = [np.pad(x, (0, self.total - len(x))) for x in xs]
        self.integers = np.zeros((len(xs), self.total), np.int64)
        mean = np.zeros(self.total, f32)
        for start, size in self.blocks:
            place = slice(start, start + size)
            largest = max(root_mean_square(row[place]) for row in rows)
            if largest == 0:
                continue
            e = exponent(largest)
            limit = largest * f32(2.0 ** (1 - e)) * f32(t_p)
            for worker, row in enumerate(rows):
                y = rotate(row[place] * f32(2.0 ** (1 - e)) * self.signs(place))
                self.integers[worker, place] = self.quantize(y, limit, worker, start)
            peak = table[-1] * len(xs)
            centred = (2 * self.integers[:, place].sum(axis=0) - peak).astype(f32)
            y = rotate(centred * (limit / f32(2 * peak)))
            mean[place] = y * self.signs(place) * f32(2.0**e)
        self.mean = mean[: len(xs[0])]

    def signs(self, place: slice) -> Floats:
        """128 bits for a unit of 128 coordinates, of each of the four words the top one first."""
        signs = []
        for c in range(place.start, place.stop):
            word = philox_words((c // 128, 0, 0, 0), self.key)[c % 128 // 32]
            signs.append(-1 if word >> (31 - c % 32) & 1 else 1)
        return np.array(signs, f32)

    def dither(self, worker: int, c: int) -> np.float32:
        """16 bits of coordinate c, at the middle of their interval."""
        word = philox_words((c // 128, worker + 1, c % 128 // 8, 0), self.key)[c % 8 // 2]
        return f32(((word >> 16 * (c % 2) & 0xFFFF) + 0.5) / 2**16)

    def quantize(self, y: Floats, limit: np.float32, worker: int, start: int) -> Integers:
        """Each coordinate to an entry of the table."""
        half = f32(self.table[-1] / 2)
        scaled = np.clip(y * (half / limit) + half, f32(0), f32(self.table[-1]))
        rounded = []
        for k, v in enumerate(scaled):
            below = max(entry for entry in self.table if entry <= v)
            above = min((entry for entry in self.table if entry > below), default=below + 1)
            distance = f32(above - below)
            chance = v - f32(below) + self.dither(worker, start + k) * distance
            rounded.append(above if chance >= distance else below)
        return np.array(rounded, np.int64)
