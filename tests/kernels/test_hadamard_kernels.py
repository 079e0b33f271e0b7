"""The Walsh-Hadamard transform: every implementation gives the definition's bits."""

from __future__ import annotations

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import assert_same, gradient
from torch import Tensor

from gradwire.codecs.arithmetic.hadamard import hadamard_, transform

POWERS = [*range(17), 18]
"""Rows of up to 2^12 values on a CPU, and 2^14 on CUDA, take one pass, longer ones two."""


def rows_of(length: int, offset: int, seed: int = 0) -> Tensor:
    """A few rows, `offset` elements past an aligned address; they begin and end within groups of 128."""
    rows = max(1, min(37, 10_000 // length))
    values = gradient("heavy_tail", rows * length, seed)
    room = torch.empty(offset + values.numel())
    room[offset:] = values
    return room[offset:].view(rows, length)


def transformed(rows: Tensor) -> Tensor:
    """`rows` are left unchanged, and what lies around them too."""
    start = rows.storage_offset()
    room = torch.full((start + rows.numel() + 5,), 7.0)
    copy = room[start : start + rows.numel()].view_as(rows).copy_(rows)
    assert hadamard_(copy) is copy
    assert torch.equal(room[:start], torch.full((start,), 7.0))
    assert torch.equal(room[start + rows.numel() :], torch.full((5,), 7.0))
    return copy


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_equal_the_definition(name: str, power: int) -> None:
    for offset in (0, 1, 3):
        rows = rows_of(1 << power, offset)
        expected = defined(transformed, rows)
        with implementation(name):
            assert_same(transformed(rows), expected)


@pytest.mark.parametrize(("name", "power"), [("v3", 20), ("base", 24), ("v4", 24)])
def test_the_longest_rows_equal_the_definition(name: str, power: int) -> None:
    """On a CPU these take three passes."""
    rows = torch.randn(1, 1 << power, generator=torch.Generator().manual_seed(1))
    expected = defined(transformed, rows)
    with implementation(name):
        assert torch.equal(hadamard_(rows), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38, 1e-42])
def test_the_ends_of_float32_are_the_definitions(name: str, value: float) -> None:
    rows = rows_of(256, 0)
    rows[1, 77] = rows[1, 99] = rows[4, 3] = value
    expected = defined(transformed, rows)
    with implementation(name):
        assert_same(transformed(rows), expected)


@pytest.mark.parametrize("length", [64, 1 << 13, 1 << 20])
def test_threads_change_nothing(length: int) -> None:
    rows = gradient("normal", 1 << 21).view(-1, length)
    with implementation("v3"):
        alone = hadamard_(rows.clone())
        torch.set_num_threads(3)
        try:
            together = hadamard_(rows.clone())
        finally:
            torch.set_num_threads(1)
    assert torch.equal(together, alone)


def test_no_rows_are_left_alone() -> None:
    for name in ("base", "emulated"):
        with implementation(name):
            assert hadamard_(torch.empty(0, 128)).shape == (0, 128)


def test_refuses_what_it_cannot_transform() -> None:
    with implementation("base"):
        for bad in (torch.zeros(4, 8).double(), torch.zeros(8, 4).t()):
            with pytest.raises(
                ValueError, match="hadamard_transform: rows must be a contiguous torch.float32"
            ):
                transform(bad)
        with pytest.raises(RuntimeError, match="an argument is out of range"):
            transform(torch.zeros(2, 12))
