"""EDGC's quantification model: the law of eigenvalues, the error at a rank, and the rank for an entropy."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire.codecs.edgc.quantification import (
    compression_errors,
    eigenvalue_quantiles,
    marchenko_pastur_cdf,
    rank_for_error,
    updated_rank,
)

SHAPES = [(64, 64), (64, 256), (256, 256), (256, 1024), (1, 1), (1, 30), (3, 50_000), (64, 70)]


def support(rows: int, columns: int) -> tuple[float, float]:
    return (math.sqrt(columns) - math.sqrt(rows)) ** 2, (math.sqrt(columns) + math.sqrt(rows)) ** 2


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_cdf_rises_from_0_to_1(rows: int, columns: int) -> None:
    low, high = support(rows, columns)
    shares = marchenko_pastur_cdf(torch.linspace(low, high, 1001, dtype=torch.float64), rows, columns)
    assert shares.dtype == torch.float64 and bool((shares.diff() > 0).all())
    ends = torch.tensor([low - 1, low, high, high + 1], dtype=torch.float64)
    assert marchenko_pastur_cdf(ends, rows, columns).tolist() == [0.0, 0.0, 1.0, 1.0]
    near = torch.tensor([high * (1 - 1e-12)], dtype=torch.float64)
    assert float(marchenko_pastur_cdf(near, rows, columns)) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("rows", "columns"), [(64, 256), (100, 101), (7, 3000)])
def test_the_cdf_is_the_printed_one(rows: int, columns: int) -> None:
    """Lemma 1 as printed, which m = n has no number for."""
    low, high = support(rows, columns)
    for value in torch.linspace(low, high, 9, dtype=torch.float64)[1:-1].tolist():
        printed = (
            -2 * math.sqrt(low * high) * math.atan(math.sqrt(high * (value - low) / (low * (high - value))))
            + (low + high) * math.asin(math.sqrt((value - low) / (high - low)))
            + math.sqrt((value - low) * (high - value))
        ) / (2 * math.pi * rows)
        found = marchenko_pastur_cdf(torch.tensor(value, dtype=torch.float64), rows, columns)
        assert float(found) == pytest.approx(printed, abs=1e-9)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_quantiles_have_their_shares(rows: int, columns: int) -> None:
    found = eigenvalue_quantiles(rows, columns)
    expected = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    torch.testing.assert_close(marchenko_pastur_cdf(found, rows, columns), expected, atol=1e-9, rtol=0)
    assert bool((found.diff() > 0).all())


@pytest.mark.parametrize(
    ("rows", "columns", "matrices"), [(64, 64, 1500), (64, 256, 100), (256, 256, 20), (256, 1024, 20)]
)
def test_errors_are_those_of_random_matrices(rows: int, columns: int, matrices: int) -> None:
    """Within 2 % of the mean over random matrices, to three quarters of full rank.

    Small square matrices vary so much that the mean of 20 is off by 2 % itself.
    """
    generator = torch.Generator().manual_seed(rows + columns)
    drawn = torch.zeros(rows + 1, dtype=torch.float64)
    for _ in range(matrices):
        matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        eigenvalues = torch.linalg.eigvalsh(matrix @ matrix.T).clamp(min=0)
        drawn[:-1] += eigenvalues.cumsum(0).sqrt().flip(0)
    mean, most = drawn / matrices, 3 * rows // 4
    found = compression_errors(rows, columns)
    assert float((found[: most + 1] / mean[: most + 1] - 1).abs().max()) < 0.02


def test_random_draws_spread_about_the_quantiles() -> None:
    """Theorem 1's draws have the same mean, while a single one errs by percents."""
    found = compression_errors(256, 1024)[:129]
    drawn = torch.stack(
        [compression_errors(256, 1024, "monte_carlo", seed)[:129] / found for seed in range(100)]
    )
    assert float((drawn.mean(0) - 1).abs().max()) < 0.01
    assert 0.01 < float(drawn[:, 0].std()) < 0.03


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_ranks_and_errors_are_inverse(rows: int, columns: int) -> None:
    errors = compression_errors(rows, columns)
    assert errors.shape == (rows + 1,) and float(errors[-1]) == 0 and bool((errors.diff() < 0).all())
    found = [rank_for_error(error, rows, columns) for error in errors.tolist()]
    assert found == list(range(rows + 1))
    assert rank_for_error(2 * float(errors[0]), rows, columns) == 0
    assert rank_for_error(math.inf, rows, columns) == 0
    between = float(errors[0] + errors[1]) / 2
    assert rank_for_error(between, rows, columns) == 1


def test_a_matrix_and_its_transpose_are_alike() -> None:
    assert compression_errors(256, 64) is compression_errors(64, 256)
    assert rank_for_error(50.0, 256, 64) == rank_for_error(50.0, 64, 256)
    assert updated_rank(20, 0.0, -0.01, 256, 64) == updated_rank(20, 0.0, -0.01, 64, 256)


def test_draws_follow_their_seed() -> None:
    first, again, other = (compression_errors(64, 80, "monte_carlo", seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first[-1]) == 0 and bool((first.diff() < 0).all())


def test_ranks_keep_the_error_as_entropy_changes() -> None:
    errors = compression_errors(256, 1024)
    assert updated_rank(64, -3.0, -3.0, 256, 1024) == 64
    for change in (-0.1, -0.02, 0.02, 0.1):
        rank = updated_rank(64, 0.0, change, 256, 1024)
        target = math.exp(-change) * float(errors[64])
        assert float(errors[rank]) <= target * (1 + 1e-9) < float(errors[rank - 1])
    # A fall of 0.19 nat allows an error as large as the matrix itself.
    assert updated_rank(128, 0.0, -0.19, 768, 3072) == 0


def test_a_steady_fall_gives_the_known_ranks() -> None:
    """256 × 1024 from rank 64 on, 0.02 nat less in every window."""
    ranks = [updated_rank(64, 0.0, -0.02 * window, 256, 1024) for window in range(11)]
    assert ranks == [64, 60, 56, 51, 47, 42, 38, 33, 28, 24, 19]


def test_extreme_entropies_have_ranks() -> None:
    assert updated_rank(8, 1e6, -1e6, 64, 64) == 0
    assert updated_rank(8, -1e6, 1e6, 64, 64) == 64
    for before, after in ((-math.inf, 0.0), (0.0, -math.inf), (math.nan, 0.0), (0.0, math.inf)):
        assert updated_rank(8, before, after, 64, 64) == 8
    # Full rank leaves no error that could be kept, so it counts as one rank less.
    assert updated_rank(64, 0.0, 0.0, 64, 64) == updated_rank(90, 0.0, 0.0, 64, 64) == 63


def test_what_has_no_rank_is_refused() -> None:
    for error in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"a compression error of {error} has no rank"):
            rank_for_error(error, 4, 4)
    with pytest.raises(ValueError, match="0 × 4 has no rank"):
        compression_errors(0, 4)
    with pytest.raises(ValueError, match="rank of -1 is out of range"):
        updated_rank(-1, 0.0, 0.0, 4, 4)
    with pytest.raises(ValueError, match="choose one of quantiles, monte_carlo"):
        compression_errors(4, 4, "exact")
