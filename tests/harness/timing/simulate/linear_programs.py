"""Linear programs in exact arithmetic, by the simplex method: small ones, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Number = Fraction | int


def maximum(rows: Sequence[Sequence[Number]], bounds: Sequence[Number], index: int) -> Fraction:
    """The greatest x[index] with rows · x ≤ bounds and x ≥ 0, where that is bounded; no bound is negative.

    By Bland's rule: of the columns that help the first one enters, of the rows that bind the one whose
    variable comes first leaves, so that it ends.
    """
    num_variables, num_rows = len(rows[0]), len(rows)
    table = [
        [*map(Fraction, row), *(Fraction(other == own) for other in range(num_rows)), Fraction(bound)]
        for own, (row, bound) in enumerate(zip(rows, bounds, strict=True))
    ]
    gains = [-Fraction(column == index) for column in range(num_variables + num_rows + 1)]
    basis = list(range(num_variables, num_variables + num_rows))
    while (entering := next((k for k, gain in enumerate(gains[:-1]) if gain < 0), None)) is not None:
        binding = [
            (row[-1] / row[entering], basis[own], own) for own, row in enumerate(table) if row[entering] > 0
        ]
        _, _, leaving = min(binding)
        pivot = table[leaving][entering]
        table[leaving] = [value / pivot for value in table[leaving]]
        for own, row in enumerate(table):
            if own != leaving and row[entering]:
                table[own] = _reduced(row, table[leaving], entering)
        gains = _reduced(gains, table[leaving], entering)
        basis[leaving] = entering
    return gains[-1]


def _reduced(row: Sequence[Fraction], pivot: Sequence[Fraction], entering: int) -> list[Fraction]:
    return [value - row[entering] * other for value, other in zip(row, pivot, strict=True)]
