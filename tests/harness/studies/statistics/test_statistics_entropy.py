"""Entropies against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwire.codecs.edgc.sampler import gaussian_entropy_without_zeros
from gradwire.codecs.interface import Layout
from gradwire.harness.studies.statistics.measures import (
    density_entropy,
    entropy,
    entropy_of_counts,
    matrix_entropies,
)

SAMPLES = 1_000_000


def normal(seed: int = 0, numel: int = SAMPLES) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sigma", [1e-6, 0.242, 1.0])
def test_gaussian(sigma: float) -> None:
    expected = math.log(sigma) + math.log(2 * math.pi * math.e) / 2
    assert density_entropy(sigma * normal()) == pytest.approx(expected, abs=0.01)
    assert gaussian_entropy_without_zeros(sigma * normal()) == pytest.approx(expected, abs=0.005)


def test_laplace() -> None:
    """1 + log 2b, b = 0.01; less than a Gaussian of the same variance has."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(2, SAMPLES, generator=generator).clamp(min=1e-12)
    x = 0.01 * (uniform[0].log() - uniform[1].log())
    assert density_entropy(x) == pytest.approx(1 + math.log(0.02), abs=0.01)
    assert gaussian_entropy_without_zeros(x) == pytest.approx(
        math.log(2 * math.pi * math.e * 2e-4) / 2, abs=0.01
    )


def test_student_t() -> None:
    """Three degrees of freedom: the variance is finite, the fourth moment is not."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(4, SAMPLES, generator=generator)
    x = parts[0] / (parts[1:].square().sum(dim=0) / 3).sqrt()
    two, one_and_half = (torch.special.digamma(torch.tensor(nu, dtype=torch.float64)) for nu in (2.0, 1.5))
    expected = 2 * float(two - one_and_half) + math.log(math.sqrt(3) * math.pi / 2)  # B(3/2, 1/2) = π/2
    assert density_entropy(x) == pytest.approx(expected, abs=0.01)


def test_uniform() -> None:
    """0 nats on [0, 1): the width of the bins counts."""
    x = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(0))
    assert density_entropy(x) == pytest.approx(0, abs=0.01)


def test_matrices_are_found_in_every_bucket() -> None:
    first = Layout(("a", "bias", "b"), ((20, 30), (7,), (5, 40)), (0, 600, 607), 807)
    second = Layout(("c", "d"), ((9,), (4, 10, 10)), (0, 9), 409)
    values = torch.stack([normal(seed, 1216) * (seed + 1) for seed in range(2)])
    found = matrix_entropies(values, (first, second))
    places = {"a": (0, 600), "b": (607, 807), "d": (816, 1216)}
    assert [(each.name, each.shape) for each in found] == [
        ("a", (20, 30)),
        ("b", (5, 40)),
        ("d", (4, 10, 10)),
    ]
    for each, (start, stop) in zip(found, places.values(), strict=True):
        expected = sum(density_entropy(row[start:stop]) for row in values) / 2
        assert each.nats == pytest.approx(expected)


def test_powers_of_two_shift_it_exactly() -> None:
    x = normal(numel=10000)
    for shift in (-90, 7):
        shifted = density_entropy(x * 2.0**shift)
        assert shifted - density_entropy(x) == pytest.approx(shift * math.log(2), abs=1e-9)


def test_zeros_are_left_out() -> None:
    x = normal(numel=10000)
    with_zeros = torch.cat([x, torch.zeros(5000), -torch.zeros(5000)])
    assert density_entropy(with_zeros) == density_entropy(x)
    assert gaussian_entropy_without_zeros(with_zeros) == pytest.approx(
        gaussian_entropy_without_zeros(x), abs=1e-9
    )
    for empty in (torch.zeros(3), torch.zeros(0)):
        assert density_entropy(empty) == -math.inf and gaussian_entropy_without_zeros(empty) == -math.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Three bits of the mantissa are all that counts."""
    x = 0.1 * normal(numel=200_000)
    assert density_entropy(x.to(dtype)) == pytest.approx(density_entropy(x), abs=0.01)


def test_entropy_of_counts() -> None:
    assert entropy_of_counts(torch.tensor([5, 5, 0, 5, 5])) == pytest.approx(2)
    assert entropy_of_counts(torch.tensor([0, 9])) == 0 and entropy_of_counts(torch.zeros(4)) == 0
    expected = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert entropy_of_counts(torch.tensor([1, 3])) == pytest.approx(expected)


def test_matrices_by_name() -> None:
    """Only parameters with two dimensions or more, wherever they lie, averaged over workers; their mean is
    weighted by coordinates and leaves out those without a gradient."""
    layouts = [
        Layout(("bias", "small"), ((40,), (20, 30)), (0, 40), 640),
        Layout(("dead", "large"), ((5, 8), (50, 6, 4)), (0, 40), 1240),
    ]
    values = torch.stack([normal(seed, 1880) for seed in (1, 2)])
    values[:, 640:680] = 0
    values[:, 680:] *= 4
    found = entropy(values, layouts)
    assert [(each.name, each.shape) for each in found.matrices] == [
        ("small", (20, 30)),
        ("dead", (5, 8)),
        ("large", (50, 6, 4)),
    ]
    small, dead, large = (each.nats for each in found.matrices)
    assert small == pytest.approx(sum(density_entropy(row[40:640]) for row in values) / 2)
    assert dead == -math.inf and large > small + 1
    assert found.matrix_nats == pytest.approx((600 * small + 1200 * large) / 1800)
    assert found.nats == pytest.approx(sum(map(density_entropy, values)) / 2)
    assert entropy(values, []).matrix_nats is None
