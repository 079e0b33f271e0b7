"""TFP's formats against ml_dtypes, numpy's half precision and float32's bit patterns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from tfp_reference import magnitudes

from gradwire.codecs.tfp.definition import restore, truncate, truncated_format

SMALL = range(2, 10)
EXPECTED = {
    2: [0, 2],
    3: [0, 1, 2, 4],
    4: [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    5: [0, *(2.0**e for e in range(-6, 9))],
    6: [0, 2.0**-7, *(m * 2.0**e for e in range(-6, 9) for m in (1, 1.5))],
}


@pytest.mark.parametrize("bits", EXPECTED)
def test_magnitudes_of_the_narrow_formats(bits: int) -> None:
    """The magnitudes are compared as lists and by code: the base's codes that end in zeros."""
    found = truncated_format(bits)
    values = [found.magnitude(code) for code in range(1 << (bits - 1))]
    assert values == EXPECTED[bits] == magnitudes(bits).tolist()
    base = ml_dtypes.float8_e4m3fn if bits > 4 else ml_dtypes.float4_e2m1fn
    width = 8 if bits > 4 else 4
    codes = (np.arange(1 << (bits - 1)) << (width - bits)).astype(np.uint8)
    assert values == codes.view(base).astype(np.float64).tolist()


@pytest.mark.parametrize("bits", [7, 8, 9])
def test_half_precision_by_its_first_bits(bits: int) -> None:
    """All codes, both signs, infinities and NaN."""
    codes = np.arange(1 << bits)
    expected = (codes << (16 - bits)).astype(np.uint16).view(np.float16).astype(np.float32)
    found = np.array(truncated_format(bits).values, np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(expected[:-1]))


@pytest.mark.parametrize("bits", range(10, 33))
def test_single_precision_by_its_first_bits(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (1000,), generator=torch.Generator().manual_seed(bits))
    expected = (codes << (32 - bits)).numpy().astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(restore(codes.to(torch.int32), truncated_format(bits)).numpy(), expected)


@pytest.mark.parametrize("bits", SMALL)
def test_every_code_is_the_code_of_its_value(bits: int) -> None:
    """Truncated and stochastically rounded, whatever the random bits; up to 6 bits −0's code is NaN's."""
    target, codes = truncated_format(bits), torch.arange(1 << bits, dtype=torch.int32)
    values = restore(codes, target)
    is_number = ~values.isnan()
    for words in (None, torch.zeros(1 << bits).long(), torch.full((1 << bits,), 0xFFFF_FFFF)):
        again = truncate(values, target, words)
        assert torch.equal(again[is_number], codes[is_number])
        assert restore(again, target).isnan().equal(values.isnan())
    if bits <= 6:
        assert values.isnan().nonzero().flatten().tolist() == [1 << (bits - 1)]
        assert truncate(torch.tensor([-0.0, 0.0]), target).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("bits", "largest"),
    [(2, 2), (3, 4), (4, 6), (5, 256), (6, 384), (7, 49152), (8, 57344), (9, 61440), (10, 1.5 * 2.0**127)],
)
def test_the_largest_magnitudes(bits: int, largest: float) -> None:
    assert truncated_format(bits).maximum == largest == magnitudes(bits)[-1]


def test_32_bits_hold_the_largest_float32() -> None:
    assert truncated_format(32).maximum == torch.finfo(torch.float32).max
