"""AQGB's payloads: every implementation sends, refines and decodes the definition's bytes, also rounded."""

from __future__ import annotations

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import assert_same, gradient
from torch import Tensor

from gradwire.codecs.aqgb.encoding import Encoding
from gradwire.codecs.aqgb.payload import Payload, plane_of
from gradwire.codecs.arithmetic.random import CoordinateBits

RANDOM = CoordinateBits((123456789, 4012345678), 3)

FIRST = [0, 1024]
"""The first coordinate of a piece of a bucket."""

CASES = [
    ("plain", "block", True, (4, 12, 20)),
    ("plain", "none", True, (8, 10, 32)),
    ("plain", "block", True, (13, 14, 31)),
    ("plain", "all", False, (7, 18)),
    ("plain", "block", False, (10, 29, 32)),
    ("embedded", "block", False, (4, 12, 32)),
]
"""Base, scale, whether a payload is rounded, and the bits that it grows to."""


def grown(
    x: Tensor, base: str, scale: str, rounded: bool, steps: tuple[int, ...], first: int
) -> list[Tensor]:
    """The messages of a payload as it grows, what it stands for each time, and that added to `x`."""
    encoding = Encoding(base, scale)
    payload = Payload.of(x, steps[0], encoding, RANDOM if rounded else None, first)
    cut = x.to(torch.float32) if payload.rounding is None else payload.rounding.dithered(x)
    found = []
    for longer in (None, *steps[1:]):
        if longer is not None:
            payload.refine(plane_of(cut, payload.bits, longer, encoding), longer)
        values, sums = torch.empty(x.numel()), x.to(torch.float32, copy=True)
        payload.decode_into(values)
        payload.add_to(sums)
        found += [payload.message.clone(), values, sums]
    return found


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize(("base", "scale", "rounded", "steps"), CASES)
def test_payloads_grow_alike(
    name: str, first: int, base: str, scale: str, rounded: bool, steps: tuple[int, ...]
) -> None:
    for numel in (1, 33, 1100):
        x = gradient("heavy_tail", numel)
        expected = defined(grown, x, base, scale, rounded, steps, first)
        with implementation(name):
            found = grown(x, base, scale, rounded, steps, first)
        for own, wanted in zip(found, expected, strict=True):
            assert_same(own, wanted)
