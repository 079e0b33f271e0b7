"""The Walsh-Hadamard transform against its matrix, its algebra, and its definition bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.codecs.arithmetic.hadamard import hadamard_


def matrix(length: int) -> Tensor:
    """Sylvester's construction, normalized: float64."""
    rows = torch.ones(1, 1, dtype=torch.float64)
    while len(rows) < length:
        rows = torch.kron(rows, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
    return rows / length**0.5


def definition(row: Tensor) -> Tensor:
    """The stages of the module's docstring, pair by pair, in float32."""
    values, distance = row.tolist(), 1
    while distance < len(values):
        for first in range(len(values)):
            if not first & distance:
                a, b = torch.tensor([values[first], values[first + distance]])
                values[first], values[first + distance] = float(a + b), float(a - b)
        distance *= 2
    return torch.tensor(values) * torch.tensor(len(values) ** -0.5)


def random_rows(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 2, 4, 32, 128, 256, 1024])
def test_it_is_the_product_with_the_normalized_matrix(length: int) -> None:
    rows = random_rows(5, length)
    expected = rows.double() @ matrix(length)
    torch.testing.assert_close(hadamard_(rows.clone()).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 8, 64, 128])
def test_the_order_of_additions_is_the_stated_one(length: int) -> None:
    rows = random_rows(3, length, seed=1)
    assert torch.equal(hadamard_(rows.clone()), torch.stack([definition(row) for row in rows]))


@pytest.mark.parametrize("length", [32, 4096, 1 << 20])
def test_it_is_orthonormal_its_own_inverse_and_linear(length: int) -> None:
    x, y = random_rows(2, length, seed=3).split(1)
    once = hadamard_(x.clone())
    assert float(once.double().norm() / x.double().norm()) == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(hadamard_(once.clone()), x, rtol=0, atol=1e-5)
    combined = hadamard_(2 * x - 0.5 * y)
    torch.testing.assert_close(combined, 2 * once - 0.5 * hadamard_(y.clone()), rtol=0, atol=2e-5)


def test_rows_are_transformed_in_place_and_do_not_mix() -> None:
    """A unit vector becomes ±1/√d everywhere; other rows stay what they are."""
    rows = torch.zeros(3, 256)
    rows[1, 77] = 1
    assert hadamard_(rows) is rows
    assert torch.equal(rows[[0, 2]], torch.zeros(2, 256))
    assert torch.equal(rows[1].abs(), torch.full((256,), 1 / 16))


def test_what_is_not_finite_stays_in_its_row() -> None:
    rows = torch.ones(3, 64)
    rows[1, 5] = float("nan")
    assert hadamard_(rows)[1].isnan().all()
    assert rows[[0, 2]].isfinite().all()


def test_lengths_that_are_no_power_of_two_are_an_error() -> None:
    with pytest.raises(AssertionError, match="rows of 12 values"):
        hadamard_(torch.zeros(2, 12))
