"""κ and δ of linear quantizers: the bounds are met and never exceeded; gradients are far from them."""

from __future__ import annotations

import itertools

import pytest
import torch
from codec_rounds import MODEL, gradients

from gradwire.codecs.linear import LinearQuantizer
from gradwire.codecs.linear.approximation import compression, worst_error, worst_group

SETTINGS = list(itertools.product((4, 8), (32, 128, 2048), (False, True), ("nearest", "stochastic")))


def quantizer_of(bits: int, group: int, hadamard: bool, rounding: str) -> LinearQuantizer:
    return LinearQuantizer(bits, group, "float32", hadamard, rounding)  # type: ignore[arg-type]


@pytest.mark.parametrize(("bits", "group", "hadamard", "rounding"), SETTINGS)
def test_the_worst_group_meets_the_bound(bits: int, group: int, hadamard: bool, rounding: str) -> None:
    quantizer = quantizer_of(bits, group, hadamard, rounding)
    rounds = 1 if rounding == "nearest" else 200
    found = compression(quantizer, worst_group(quantizer).repeat(4), rounds)
    assert found.error == pytest.approx(worst_error(quantizer), rel=1e-3 if rounds == 1 else 0.1)
    if rounding == "stochastic":
        assert found.bias == pytest.approx(found.error / rounds, rel=0.5), "unbiased: κ is defined"
    else:
        assert found.bias == pytest.approx(found.error)
    assert found.delta == 1 - found.error


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_no_vector_exceeds_the_bound(rounding: str) -> None:
    """Vectors of all kinds: from normal to a few large coordinates, with many fractions of a step."""
    generator = torch.Generator().manual_seed(0)
    for bits, group in ((4, 32), (4, 128), (8, 128), (4, 2048)):
        quantizer = quantizer_of(bits, group, False, rounding)
        bound = worst_error(quantizer)
        for exponent in (1, 2, 5, 20):
            v = torch.randn(group, generator=generator).abs_().pow_(exponent)
            assert compression(quantizer, v, 30).error <= 1.05 * bound
        for fraction in torch.linspace(0.05, 1.95, 20).tolist():
            v = torch.full((group,), fraction / quantizer.format.peak)
            v[::group] = 1.0
            assert compression(quantizer, v, 30).error <= 1.15 * bound


def test_known_bounds() -> None:
    """1 − δ = (127/4) / (49 + 127/4) of int4 in groups of 128, rounded to nearest."""
    assert 1 - worst_error(LinearQuantizer()) == pytest.approx(0.6068, abs=1e-4)
    assert 1 - worst_error(LinearQuantizer(4, 2048)) == pytest.approx(0.0874, abs=1e-4)
    assert 1 - worst_error(LinearQuantizer(8, 128)) == pytest.approx(0.9980, abs=1e-4)
    assert worst_error(LinearQuantizer(rounding="stochastic")) == pytest.approx(0.4476, abs=1e-4)
    with pytest.raises(ValueError, match="without energy"):
        compression(LinearQuantizer(), torch.zeros(5))


def test_gradients_are_far_from_the_bounds() -> None:
    """Blocks of very different magnitudes: a tenth of the bounds and less."""
    x = gradients(MODEL, 1)[0]
    nearest, stochastic = (
        compression(LinearQuantizer(rounding=rounding), x, 20)  # type: ignore[arg-type]
        for rounding in ("nearest", "stochastic")
    )
    assert nearest.delta > 0.97
    assert nearest.error < stochastic.kappa < 0.06
