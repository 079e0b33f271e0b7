"""The casts against ml_dtypes and torch, on every class of float32 values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mxfp_reference import ELEMENTS, cast_codes, saturates
from torch import Tensor

from gradwire.codecs.mxfp.formats import FORMATS, cast

NAMES = sorted(FORMATS)


def every_upper_half() -> Tensor:
    """All 2¹⁶ values of the sign, the exponent and the first seven mantissa bits."""
    return (torch.arange(1 << 16) << 16).to(torch.int32).view(torch.float32)


def around_ties(name: str) -> Tensor:
    """Every value of the format, every midpoint of two neighbours, and the float32 numbers next to these."""
    values = torch.tensor(sorted({v for v in FORMATS[name].values if v == v}), dtype=torch.float64)
    step_beyond = values[-1] - values[-2]
    ends = torch.stack((values[0] - step_beyond, values[-1] + step_beyond))
    values = torch.cat((values, ends)).sort().values
    points = torch.cat((values, (values[1:] + values[:-1]) / 2)).float()
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    return torch.cat((points, points.nextafter(up), points.nextafter(down), -points))


def random_patterns() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(1 << 31), 1 << 31, (500_000,), generator=generator)
    near_one = (torch.randn(500_000, generator=generator).exp2() * 4).view(torch.int32)
    return torch.cat((bits.to(torch.int32), near_one)).view(torch.float32)


def everything(name: str) -> Tensor:
    return torch.cat((every_upper_half(), around_ties(name), random_patterns()))


@pytest.mark.parametrize("name", NAMES)
def test_every_code_has_the_value_of_ml_dtypes(name: str) -> None:
    codes = np.arange(1 << FORMATS[name].width, dtype=np.uint8)
    expected = codes.view(ELEMENTS[name].dtype).astype(np.float32)
    values = np.array(FORMATS[name].values, dtype=np.float32)
    np.testing.assert_array_equal(
        values.view(np.uint32) << 1, expected.view(np.uint32) << 1
    )  # but NaN's sign
    assert (np.signbit(values) == np.signbit(expected))[~np.isnan(values)].all()
    assert FORMATS[name].maximum == ELEMENTS[name].maximum == np.nanmax(values)
    assert FORMATS[name].largest_exponent == ELEMENTS[name].emax


@pytest.mark.parametrize("name", NAMES)
def test_casts_are_those_of_ml_dtypes(name: str) -> None:
    """Unclamped where both round into the range, clamped beyond it."""
    x, element = everything(name), ELEMENTS[name]
    x = x[x.isfinite()]
    codes, saturated = cast(x, FORMATS[name])
    beyond = saturates(x.numpy(), element)
    np.testing.assert_array_equal(
        codes.numpy()[~beyond], x.numpy()[~beyond].astype(element.dtype).view(np.uint8)
    )
    np.testing.assert_array_equal(codes.numpy(), cast_codes(x.numpy(), element))
    assert int(saturated.sum()) == beyond.sum() > 1000
    assert np.unique(codes.numpy()).size == (1 << FORMATS[name].width) - 2 * (name == "mxfp8")


def test_e4m3_is_torchs() -> None:
    x = everything("mxfp8")
    x = x[x.abs() <= 464]
    expected = x.to(torch.float8_e4m3fn).view(torch.uint8).to(torch.int32)
    assert torch.equal(cast(x, FORMATS["mxfp8"])[0], expected)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_and_what_underflows_keep_their_sign(name: str) -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-30, -1e-30])
    sign = 1 << (FORMATS[name].width - 1)
    codes, saturated = cast(x, FORMATS[name])
    assert codes.tolist() == [0, sign] * 3
    assert not saturated.any()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_saturates_with_its_sign(name: str) -> None:
    patterns = torch.tensor([0x7F80_0000, 0x7F80_0001, 0x7FFF_FFFF, 0x7FC0_0000], dtype=torch.int32)
    x = torch.cat((patterns, patterns | -(1 << 31))).view(torch.float32)
    codes, saturated = cast(x, FORMATS[name])
    largest, sign = FORMATS[name].largest_code, 1 << (FORMATS[name].width - 1)
    assert codes.tolist() == [largest] * 4 + [largest | sign] * 4
    assert saturated.all()


def test_saturation_begins_where_rounding_leaves_the_range() -> None:
    for name, last, first in (("mxfp8", 464.0, 464.001), ("mxfp6", 29.999, 30.0), ("mxfp4", 6.999, 7.0)):
        maximum = FORMATS[name].maximum
        for x, expected in ((last, 0), (first, 1), (-last, 0), (-first, 1), (maximum, 0)):
            codes, saturated = cast(torch.tensor([x]), FORMATS[name])
            assert int(saturated) == expected
            assert abs(FORMATS[name].values[int(codes)]) == maximum
