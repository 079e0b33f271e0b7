"""Interval arithmetic against sets of the cells of a grid."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gradwire.harness.timing.measure.breakdown import clip, difference, intersection, measure, union

GRID = 40


def random_intervals(source: random.Random, count: int) -> list[tuple[float, float]]:
    """Whole-numbered intervals, unsorted, overlapping, touching, some empty."""
    pairs = [sorted(source.choices(range(GRID + 1), k=2)) for _ in range(count)]
    return [(float(start), float(end)) for start, end in pairs]


def cells(intervals: list[tuple[float, float]]) -> set[int]:
    return {cell for start, end in intervals for cell in range(int(start), int(end))}


@pytest.mark.parametrize("seed", range(200))
def test_against_a_grid(seed: int) -> None:
    source = random.Random(seed)
    raw = [random_intervals(source, source.randrange(7)) for _ in range(2)]
    a, b = union(raw[0]), union(raw[1])
    assert cells(a) == cells(raw[0])
    assert cells(intersection(a, b)) == cells(a) & cells(b)
    assert cells(difference(a, b)) == cells(a) - cells(b)
    assert cells(clip(a, 10, 30)) == cells(a) & set(range(10, 30))
    for result in (a, b, intersection(a, b), difference(a, b), clip(a, 10, 30)):
        assert measure(result) == len(cells(result))
        assert all(start < end for start, end in result)
        assert all(before[1] <= after[0] for before, after in pairwise(result))


def test_union_joins_touching_intervals_and_drops_empty_ones() -> None:
    assert union([(2.0, 3.0), (5.0, 5.0), (1.0, 2.0)]) == [(1.0, 3.0)]


def test_a_reversed_interval_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="ends before it starts"):
        union([(2.0, 1.0)])
