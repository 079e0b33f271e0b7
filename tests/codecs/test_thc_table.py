"""The quantization tables: optimal against brute force, expected errors against sampling."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from gradwire.codecs.thc.blocks import QuantizationTable, neighbours, optimal_table, uniform_table


def cell_error(low: float, high: float) -> float:
    """∫(z − low)(high − z)φ(z)dz by Simpson's rule."""
    z = np.linspace(low, high, 201)
    values = (z - low) * (high - z) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    weights = np.array([1, *([4, 2] * 100)[:-1], 1])
    return float((values * weights).sum() * (high - low) / 600)


def inner_error(entries: tuple[int, ...], t: float) -> float:
    points = [-t + entry * 2 * t / entries[-1] for entry in entries]
    return sum(cell_error(low, high) for low, high in pairwise(points))


@pytest.mark.parametrize("t", [0.8, 2.154, 5.0])
@pytest.mark.parametrize(("bits", "granularity"), [(1, 6), (2, 3), (2, 8), (2, 9), (3, 13)])
def test_no_other_symmetric_table_rounds_better(bits: int, granularity: int, t: float) -> None:
    found = optimal_table(bits, granularity, t).entries
    halves = combinations(range(1, (granularity + 1) // 2), (1 << bits) // 2 - 1)
    tables = [(0, *half, *(granularity - entry for entry in reversed((0, *half)))) for half in halves]
    assert found in tables
    least = min(inner_error(entries, t) for entries in tables)
    assert inner_error(found, t) == pytest.approx(least, rel=1e-9)


def test_the_tables_of_thc_come_out() -> None:
    """For p = 1/16, 1/32 and 1/64 at granularity 30: those of the authors' released code."""
    wide_in_the_middle = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
    assert optimal_table(4, 30, 1.8627).entries == tuple(range(0, 31, 2))
    assert optimal_table(4, 30, 2.154).entries == wide_in_the_middle
    assert optimal_table(4, 30, 2.4176).entries == wide_in_the_middle


def test_a_table_of_all_integers_is_the_uniform_one() -> None:
    assert optimal_table(4, 15, 2.154) == uniform_table(4)
    assert uniform_table(4).is_uniform
    assert not optimal_table(4, 30, 2.154).is_uniform


@pytest.mark.parametrize("table", [uniform_table(4), uniform_table(1), optimal_table(4, 30, 2.154)])
def test_the_expected_error_is_that_of_rounding_and_clamping(table: QuantizationTable) -> None:
    """Against the same integral over the range, and outside of it, on a grid of a normal distribution."""
    t = 2.154
    z = np.linspace(-9, 9, 2_000_001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    points = np.array(table.entries) * 2 * t / table.granularity - t
    clamped = np.clip(z, -t, t)
    cell = np.clip(np.searchsorted(points, clamped, side="right") - 1, 0, len(points) - 2)
    variance = (clamped - points[cell]) * (points[cell + 1] - clamped)
    expected = float(((variance + (z - clamped) ** 2) * density).sum() * (z[1] - z[0]))
    assert table.expected_error(t) == pytest.approx(expected, rel=1e-4)


def test_nonuniform_rounds_better_than_uniform() -> None:
    uniform, nonuniform = uniform_table(4), optimal_table(4, 30, 2.154)
    assert nonuniform.expected_error(2.154) < 0.99 * uniform.expected_error(2.154)


def test_neighbours_enclose_every_integer() -> None:
    table = QuantizationTable((0, 3, 4, 7))
    below, distance = neighbours(table, torch.device("cpu"))
    assert below.tolist() == [0, 0, 0, 3, 4, 4, 4, 7]
    assert distance.tolist() == [3, 3, 3, 1, 3, 3, 3, 1]
