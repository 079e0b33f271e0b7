"""The choice among codebooks: what it gains, where it is written, and what it leaves unchanged."""

from __future__ import annotations

import pytest
import torch
from dynamiq_plus_reference import EPSILONS, signed_table
from torch import Tensor

from gradwire.codecs.dynamiq.codebooks import (
    CODEBOOK_WIDTHS,
    SPREAD,
    codebooks_of,
    marked,
    mirrored,
    unmarked,
)
from gradwire.codecs.dynamiq.format import super_group_scale

CPU = torch.device("cpu")
GROUP = 32
every_width = pytest.mark.parametrize("width", CODEBOOK_WIDTHS)


def shapes() -> Tensor:
    """Super-groups of all kinds, (800, 256): normal, heavy-tailed, sparse, one-sided, uniform."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(800, 256, generator=generator)
    normal[200:400] *= torch.exp(0.7 * torch.randn(200, 256, generator=generator))
    normal[400:550] *= torch.rand(150, 256, generator=generator) < 0.1
    normal[550:700] = (normal[550:700] + torch.linspace(-2, 2, 150)[:, None]) * 0.3
    normal[700:] = torch.rand(100, 256, generator=generator) - 0.4
    return normal


def choose(rows: Tensor, width: int) -> Tensor:
    books = codebooks_of(width, EPSILONS[width], CPU)
    magnitude = rows.abs().view(-1, 256 // GROUP, GROUP)
    maximum = magnitude.amax(dim=2)
    return books.choose(magnitude, maximum, maximum == 0, rows)


def expected_error(rows: Tensor, epsilon: float, width: int, mirror: bool) -> Tensor:
    """Σ (v − q)(q′ − v)·max² of every super-group, in float64."""
    values = torch.tensor([float(v) for v in signed_table(epsilon, width)], dtype=torch.float64)
    levels = (-values if mirror else values).unique()
    maximum = rows.double().abs().view(-1, 256 // GROUP, GROUP).amax(dim=2, keepdim=True)
    fraction = (rows.double().view(-1, 256 // GROUP, GROUP) / maximum).nan_to_num(0).clamp(-1, 1)
    upper = torch.searchsorted(levels, fraction.contiguous()).clamp(min=1)
    error = (fraction - levels[upper - 1]) * (levels[upper] - fraction) * maximum.square()
    return error.sum(dim=(1, 2))


def all_errors(rows: Tensor, width: int) -> Tensor:
    """(4, rows), by number of the codebook."""
    epsilons = (EPSILONS[width] / SPREAD, EPSILONS[width] * SPREAD)
    return torch.stack([expected_error(rows, e, width, mirror) for e in epsilons for mirror in (False, True)])


@every_width
def test_the_choice_is_next_to_the_best_and_never_worse_than_the_first(width: int) -> None:
    rows = shapes()
    errors, choice = all_errors(rows, width), choose(rows, width).long()
    got = errors.gather(0, choice[None])[0]
    assert (got <= errors[0] * 1.08).all()
    assert (got <= errors.amin(dim=0) * 1.08).all()
    assert got.sum() <= 1.0005 * errors.amin(dim=0).sum()
    assert choice.unique().tolist() == [0, 1, 2, 3]


@every_width
def test_a_choice_is_better_than_none(width: int) -> None:
    rows = shapes()
    single = expected_error(rows, EPSILONS[width], width, False)
    chosen = all_errors(rows, width).gather(0, choose(rows, width).long()[None])[0]
    assert (chosen / single).mean() < 0.97


@every_width
def test_mirrored_coordinates_choose_the_mirrored_codebook(width: int) -> None:
    rows = shapes()
    choice, other = choose(rows, width), choose(-rows, width)
    assert torch.equal(choice ^ 1, other)
    assert torch.equal(mirrored(rows, choice).abs(), rows.abs())
    assert torch.equal(mirrored(rows, choice)[choice == 3], -rows[choice == 3])
    assert torch.equal(mirrored(rows, choice)[choice == 2], rows[choice == 2])


@every_width
@pytest.mark.parametrize("exponent", [-20, 9])
def test_scale_and_order_of_super_groups_do_not_matter(width: int, exponent: int) -> None:
    rows = shapes()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    assert torch.equal(choose(rows[order] * 2.0**exponent, width), choose(rows, width)[order])


def test_of_equal_errors_the_first_counts() -> None:
    """Zeros and groups that are sent as zeros have an error of 0 in all codebooks."""
    rows = torch.zeros(3, 256)
    rows[1, ::2] = -0.0
    rows[2] = torch.nan
    silent = torch.ones(3, 256 // GROUP, dtype=torch.bool)
    reference = torch.full((3, 256 // GROUP), torch.nan)
    for width in CODEBOOK_WIDTHS:
        books = codebooks_of(width, EPSILONS[width], CPU)
        assert books.choose(rows.abs().view(3, -1, GROUP), reference, silent, rows).tolist() == [0, 0, 0]


def test_scales_hold_the_choice_and_stay_bounds() -> None:
    """Scales are at most 1/64 too large; the bits that mark the codebook change only sign and table."""
    maxima = torch.rand(4000, generator=torch.Generator().manual_seed(2)) * 3 + 2.0**-10
    maxima[:3] = torch.tensor([0.0, torch.nan, torch.finfo(torch.float32).max])
    patterns = super_group_scale(maxima, spare=1)
    scales = (patterns << 16).view(torch.float32)
    assert (patterns & 1 == 0).all() and scales[1].isnan() and scales[2].isfinite() and scales[0] == 0
    assert (scales[3:] >= maxima[3:]).all() and (scales[3:] <= maxima[3:] * (1 + 2.0**-6)).all()
    for choice in range(4):
        scale = marked(patterns, torch.full((4000,), choice, dtype=torch.int32)).to(torch.int16)
        meant = (unmarked(scale.to(torch.int32)) << 16).view(torch.float32)
        expected = -scales if choice & 1 else scales
        assert torch.equal(meant.nan_to_num(), expected.nan_to_num())
        for width in CODEBOOK_WIDTHS:
            books = codebooks_of(width, EPSILONS[width], CPU)
            assert (books.tables(scale) == (choice >> 1) * len(books.decoded) // 2).all()


@every_width
def test_both_tables_are_looked_up(width: int) -> None:
    books = codebooks_of(width, EPSILONS[width], CPU)
    codes = torch.arange(1 << width)
    found = books.decoded[codes + books.tables(torch.tensor([0x4000, 0x4001], dtype=torch.int16))]
    for row, epsilon in zip(found, (EPSILONS[width] / SPREAD, EPSILONS[width] * SPREAD), strict=True):
        expected = torch.tensor([float(v) for v in signed_table(epsilon, width)])
        torch.testing.assert_close(row, expected, rtol=1e-6, atol=0)
