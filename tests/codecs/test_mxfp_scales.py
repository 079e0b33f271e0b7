"""Block maxima as they travel, and the rules that make scales of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwire.codecs.mxfp.definition import BLOCK, block_maxima
from gradwire.codecs.mxfp.formats import FORMATS, block_scales

LARGEST = torch.finfo(torch.bfloat16).max


def one_block_each(values: Tensor) -> Tensor:
    """A bucket whose i-th block has its largest magnitude, `values[i]`, in place i mod 32."""
    blocks = torch.zeros(values.numel(), BLOCK)
    place = torch.arange(values.numel())
    blocks[place, place % BLOCK] = values
    return blocks.flatten()


def test_maxima_are_the_smallest_bf16_numbers_that_are_not_below() -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 0x7F7F_0001, (20_000,), generator=generator, dtype=torch.int64)
    values = torch.cat(
        (bits.to(torch.int32).view(torch.float32), torch.tensor([1.0, 1e-45, 2.0**-133, LARGEST]))
    )
    maxima = block_maxima(one_block_each(-values))
    assert maxima.dtype == torch.bfloat16
    assert (maxima.float() >= values).all()
    below = (maxima.view(torch.int16) - 1).view(torch.bfloat16).float()
    assert (below < values)[values > 0].all()


def test_maxima_beyond_bf16_stay_finite_and_what_is_not_finite_is_nan() -> None:
    beyond = torch.tensor([torch.finfo(torch.float32).max, LARGEST * (1 + 2.0**-9)])
    assert block_maxima(one_block_each(beyond)).tolist() == [LARGEST] * 2
    patterns = torch.tensor([0x7F80_0000, 0x7F80_0001, 0x7FFF_FFFF, -1, -0x80_0000], dtype=torch.int32)
    assert block_maxima(one_block_each(patterns.view(torch.float32))).isnan().all()


@pytest.mark.parametrize("numel", [1, 31, 32, 33, 1000, 4096 * 32 + 1])
def test_the_last_block_counts_what_it_has(numel: int) -> None:
    x = torch.arange(1, numel + 1, dtype=torch.float32).neg()
    maxima = block_maxima(x)
    ends = [min(numel, 32 * (j + 1)) for j in range(-(-numel // 32))]
    expected = torch.tensor(ends, dtype=torch.float32)
    assert maxima.shape == expected.shape
    assert (maxima.float() >= expected).all() and (maxima.float() <= expected * (1 + 2.0**-7)).all()


def element_scales(maxima: list[float], mu: float, rule: str, name: str) -> list[float]:
    """X of blocks with these maxima, found from inputs and outputs alike."""
    scales = block_scales(torch.tensor(maxima).bfloat16(), mu, rule, FORMATS[name], workers=4)  # type: ignore[arg-type]
    way_in = scales.normalizer.double() * scales.factor.double()
    way_out = scales.step.double() * scales.restorer.double() * 4
    torch.testing.assert_close(way_in * way_out, torch.ones_like(way_in), rtol=1e-6, atol=0)
    return [float(x) for x in way_out]


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("mu", [1.0, 3.0, 1.5 + 2.0**-23, 1.75 + 2.0**-23])
def test_rules_are_what_they_are_defined_as(name: str, mu: float) -> None:
    """On every bf16 significand; the last two μ are just beyond the significands of the formats' maxima."""
    element = FORMATS[name]
    maxima = [power * (1 + step / 128) for power in (2.0**-60, 1.0, 2.0**50) for step in range(128)]
    found = {
        rule: element_scales(maxima, mu, rule, name)
        for rule in ("bf16_mu", "e8m0_floor", "e8m0_even", "e8m0_ceil")
    }
    for i, maximum in enumerate(maxima):
        s = float(torch.tensor(mu) * torch.tensor(maximum))
        assert found["bf16_mu"][i] == pytest.approx(s / element.maximum, rel=1e-6)
        floor = 2.0 ** (math.floor(math.log2(s)) - element.largest_exponent)
        assert found["e8m0_floor"][i] == floor
        rounds_up = s >= 2.0 ** (math.floor(math.log2(s)) + 1) * (1 - 2.0 ** -(element.mantissa_bits + 2))
        assert found["e8m0_even"][i] == floor * (2 if rounds_up else 1)
        ceil = found["e8m0_ceil"][i]
        assert math.log2(ceil) == int(math.log2(ceil))
        assert ceil * element.maximum >= s > ceil / 2 * element.maximum
    assert len({str(scales) for scales in found.values()}) == 4


@pytest.mark.parametrize("rule", ["bf16_mu", "e8m0_floor", "e8m0_even", "e8m0_ceil"])
def test_zeros_and_what_is_not_finite_are_set_apart(rule: str) -> None:
    maxima = torch.tensor([0.0, torch.nan, torch.inf, 1.0, 2.0**-133, LARGEST]).bfloat16()
    for element in FORMATS.values():
        scales = block_scales(maxima, 2.0, rule, element, workers=2)  # type: ignore[arg-type]
        assert scales.alive.flatten().tolist() == [False, False, False, True, True, True]
        assert scales.step.isnan().flatten().tolist() == [False, True, True, False, False, False]
        for factors in (scales.normalizer, scales.factor[3:], scales.restorer):
            assert factors.isfinite().all() and (factors >= torch.finfo(torch.float32).tiny).all()
