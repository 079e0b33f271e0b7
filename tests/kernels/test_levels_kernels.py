"""QSGD and TernGrad: every implementation writes the definition's bytes, and reads them as it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, WRONG_KEY, assert_same, gradient, key_in_memory, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.options.quantized import GROUP_SIZES, Norm
from gradwire.codecs.qsgd import LevelCoder

RANDOM = CoordinateBits((123456789, 4012345678), 3)

FIRST = 1 << 20
"""The first coordinate of the slice of the bucket."""

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def encoded(coder: LevelCoder, x: Tensor, seed: int) -> Tensor:
    out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
    coder.encode(x, FIRST, out)
    return out


def added(coder: LevelCoder, message: Tensor, x: Tensor, seed: int) -> list[Tensor]:
    """Decoded, added to something, and added to something that is encoded."""
    values, sums = poisoned(x.numel(), torch.float32, seed), x.clone()
    coder.decode_into(message, FIRST, values)
    coder.accumulate(message, FIRST, sums)
    out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
    coder.accumulate_encode(message, FIRST, x, out)
    return [values, sums, out]


def check(name: str, coder: LevelCoder, x: Tensor, random: CoordinateBits = RANDOM) -> None:
    """Compares what the coder does with these random bits with what it does by definition with `RANDOM`."""
    assert coder.random == RANDOM
    sums = misaligned(0.5 * gradient("normal", x.numel(), seed=1), 1)
    message = defined(encoded, coder, x, 0)
    expected = defined(added, coder, message, sums, 0)
    coder = replace(coder, random=random)
    with implementation(name):
        assert_same(encoded(coder, x, 1), message)
        results = added(coder, message, sums, 1)
    for actual, wanted in zip(results, expected, strict=True):
        assert_same(actual, wanted)


@every_implementation
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("group", GROUP_SIZES)
def test_every_group(name: str, norm: Norm, group: int) -> None:
    for bits, offset in ((2, 0), (8, 1)):
        for numel in (1, 700, group + 777 if group < 5000 else group // 2 + 1):
            check(name, LevelCoder(group, bits, norm, RANDOM), misaligned(gradient("normal", numel), offset))


@every_implementation
def test_several_long_groups(name: str) -> None:
    """The groups are longer than several tiles."""
    for group in (8192, 65536):
        check(name, LevelCoder(group, 6, "l2", RANDOM), gradient("heavy_tail", group + 12345))


@every_implementation
@pytest.mark.parametrize("bits", range(2, 17))
def test_every_width(name: str, bits: int) -> None:
    for group in (64, 512):
        for numel in (512, 1537):
            check(name, LevelCoder(group, bits, "l2", RANDOM), gradient("heavy_tail", numel))


@every_implementation
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gradient(name: str, kind: str) -> None:
    """Special values of float32 and bfloat16: one that is not finite makes its group NaN, and no other."""
    for norm in ("l2", "max"):
        for group in (8, 128, 1024):
            for dtype in (torch.float32, torch.bfloat16):
                check(name, LevelCoder(group, 5, norm, RANDOM), gradient(kind, 3000).to(dtype))


@every_implementation
def test_a_key_in_memory(name: str) -> None:
    random = CoordinateBits(WRONG_KEY, RANDOM.rank, key_in_memory(RANDOM.key))
    for group in (8, 512, 2048):
        for dtype in (torch.float32, torch.bfloat16):
            check(name, LevelCoder(group, 5, "l2", RANDOM), gradient("normal", 5000).to(dtype), random)


def test_threads_change_nothing() -> None:
    x = gradient("normal", 1 << 19)
    for group in (512, 1 << 14):
        coder = LevelCoder(group, 4, "l2", RANDOM)
        with implementation("base"):
            alone = encoded(coder, x, 0)
            torch.set_num_threads(3)
            try:
                assert_same(encoded(coder, x, 1), alone)
            finally:
                torch.set_num_threads(1)


def test_messages_may_lie_anywhere() -> None:
    for name in ("v3", "emulated"):
        coder, x = LevelCoder(64, 5, "max", RANDOM), gradient("normal", 1025)
        with using_kernels("default"):
            expected = encoded(coder, x, 0)
        with implementation(name):
            out = misaligned(poisoned(len(expected), torch.uint8), 1)
            coder.encode(x, FIRST, out)
            assert_same(out, expected)
            assert_same(coder.decode(out, 0, 1025), coder.decode(expected, 0, 1025))


def test_refuses_what_it_cannot_read() -> None:
    x, coder = gradient("normal", 1000), LevelCoder(512, 4, "l2", RANDOM)
    out = torch.zeros(coder.num_bytes(1000), dtype=torch.uint8)
    with implementation("base"):
        with pytest.raises(
            ValueError, match="levels_encode: message_out must be a contiguous torch.uint8 of 508"
        ):
            coder.encode(x, 0, out[:-1])
        with pytest.raises(
            ValueError, match="levels_decode: values_out must be a contiguous torch.float32 of 1000"
        ):
            coder.decode_into(out, 0, x.double())
        for bad in (LevelCoder(96, 4, "l2", RANDOM), LevelCoder(512, 17, "l2", RANDOM)):
            with pytest.raises(RuntimeError, match="levels_encode on cpu: an argument is out of range"):
                bad.encode(x, 0, torch.zeros(bad.num_bytes(1000), dtype=torch.uint8))
