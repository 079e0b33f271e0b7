"""Microscaling formats: every implementation gives the definition's bytes, counts and means."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed
from gradwire.codecs.mxfp import definition
from gradwire.codecs.mxfp.definition import block_maxima, num_blocks, write_maxima
from gradwire.codecs.mxfp.formats import BY_WIDTH, SharedScales
from gradwire.codecs.native.call import run
from gradwire.codecs.native.choice import library_for, using_kernels
from gradwire.codecs.options.quantized import ScaleRule

WIDTHS = sorted(BY_WIDTH)
RULES: tuple[ScaleRule, ...] = get_args(ScaleRule)
DTYPES = [torch.float32, torch.bfloat16]
ROOM = 64
"""Elements around an output that must stay as they are."""


def surrounded(numel: int, dtype: torch.dtype, offset: int) -> tuple[Tensor, Tensor]:
    """A poisoned tensor at an address `offset` elements past an aligned one, and the room it lies in."""
    room = poisoned(numel + 2 * ROOM, dtype)
    return room[ROOM + offset : ROOM + offset + numel], room


def assert_room_is_untouched(room: Tensor, inside: Tensor) -> None:
    start = inside.storage_offset()
    outside = torch.cat((room[:start], room[start + inside.numel() :]))
    assert_same(outside, poisoned(outside.numel(), room.dtype))


def packed_bytes(numel: int, width: int) -> int:
    return num_blocks(numel) * definition.block_bytes(BY_WIDTH[width])


def scales_of(maxima: Tensor, mu: float, rule: str) -> SharedScales:
    return SharedScales(maxima, mu, cast(ScaleRule, rule), workers=3)


def quantized(
    x: Tensor, maxima: Tensor, mu: float, rule: str, width: int, offset: int = 0
) -> tuple[Tensor, Tensor]:
    """Elements, and a count of saturated casts that begins with 7."""
    out, room = surrounded(packed_bytes(x.numel(), width), torch.uint8, offset)
    count = torch.tensor(7)
    definition.quantize(x, scales_of(maxima, mu, rule), BY_WIDTH[width], out, count)
    assert_room_is_untouched(room, out)
    return out, count[None]


def dequantized(
    packed: Tensor,
    maxima: Tensor,
    mu: float,
    rule: str,
    width: int,
    numel: int,
    dtype: torch.dtype,
    offset: int,
) -> Tensor:
    out, room = surrounded(numel, dtype, offset)
    definition.dequantize(packed, scales_of(maxima, mu, rule), BY_WIDTH[width], out)
    assert_room_is_untouched(room, out)
    return out


def every_maximum(numel: int) -> Tensor:
    """Block maxima of all kinds: zero, subnormal, NaN, infinite, the largest and ordinary ones."""
    generator = torch.Generator().manual_seed(numel)
    patterns = torch.randint(0, 0x7F80, (num_blocks(numel),), generator=generator).to(torch.int16)
    for place, pattern in enumerate((0, 1, 0x7FC0, 0x7F80, 0x7F7F, 0x3F80)):
        patterns[place::11] = pattern
    return patterns.view(torch.bfloat16)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_maxima_equal_the_definition(name: str, dtype: torch.dtype, kind: str) -> None:
    for numel, offset in ((1, 0), (31, 1), (1023, 0), (1057, 3), (9000, 0)):
        x = misaligned(gradient(kind, numel).to(dtype), offset)
        expected = defined(block_maxima, x)
        with implementation(name):
            out, room = surrounded(num_blocks(numel), torch.bfloat16, offset)
            write_maxima(x, out)
            assert_same(out, expected)
            assert_room_is_untouched(room, out)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_elements_equal_the_definition(name: str, width: int, dtype: torch.dtype, kind: str) -> None:
    """Covers the workers' own maxima, and maxima that are too small, so that many casts saturate."""
    for numel, offset, rule, mu, smaller in (
        (1, 0, "bf16_mu", 1.0, 1.0),
        (1063, 1, "e8m0_floor", 3.0, 1.0),
        (1500, 3, "e8m0_even", 1.0, 0.25),
        (4600, 0, "e8m0_ceil", 2.7, 1.0),
        (5000, 0, "bf16_mu", 4.1, 0.125),
    ):
        x = misaligned(gradient(kind, numel).to(dtype), offset)
        maxima = defined(block_maxima, x.float() * smaller)
        expected = defined(quantized, x, maxima, mu, rule, width)
        with implementation(name):
            actual = quantized(x, maxima, mu, rule, width, offset)
        for result, wanted in zip(actual, expected, strict=True):
            assert_same(result, wanted)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_scales_of_every_maximum_equal_the_definition(name: str, width: int) -> None:
    numel = 4000
    maxima = every_maximum(numel)
    x = gradient("normal", numel) * maxima.float().nan_to_num(1, 1).repeat_interleave(32)
    x = x.clamp(-3e38, 3e38)
    for rule in RULES:
        for mu in (1.0, 1.75 + 2.0**-23, 1e-3, 2048.0):
            expected = defined(quantized, x, maxima, mu, rule, width)
            with implementation(name):
                actual = quantized(x, maxima, mu, rule, width)
            for result, wanted in zip(actual, expected, strict=True):
                assert_same(result, wanted)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_means_equal_the_definition(name: str, width: int, dtype: torch.dtype) -> None:
    """Covers every code, E4M3's NaN among them, and every kind of maximum."""
    for numel, offset, rule, mu in (
        (1, 0, "bf16_mu", 1.0),
        (1063, 1, "e8m0_floor", 3.0),
        (1500, 3, "e8m0_even", 1.0),
        (4600, 0, "e8m0_ceil", 2.7),
        (5000, 0, "bf16_mu", 4.1),
        (2048, 2, "bf16_mu", 2048.0),
    ):
        generator = torch.Generator().manual_seed(numel)
        packed = torch.randint(0, 256, (packed_bytes(numel, width),), generator=generator).to(torch.uint8)
        packed, maxima = misaligned(packed, offset), every_maximum(numel)
        expected = defined(dequantized, packed, maxima, mu, rule, width, numel, dtype, 0)
        with implementation(name):
            assert_same(dequantized(packed, maxima, mu, rule, width, numel, dtype, offset), expected)


@pytest.mark.parametrize("name", [*IMPLEMENTATIONS, "default"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rule", "numel"), [("bf16_mu", 5000), ("e8m0_floor", 1063), ("e8m0_ceil", 1)])
def test_mu_comes_from_memory_where_it_is_given(
    name: str, width: int, dtype: torch.dtype, rule: str, numel: int
) -> None:
    """Another one is given by value, as that of the step in which a round was captured."""
    mu, element = 1.75 + 2.0**-23, BY_WIDTH[width]
    x = gradient("normal", numel).to(dtype)
    maxima = defined(block_maxima, x)
    elements, count = defined(quantized, x, maxima, mu, rule, width)
    means = defined(dequantized, elements, maxima, mu, rule, width, numel, dtype, 0)
    scales = replace(scales_of(maxima, 8.0, rule), mu_place=torch.tensor([mu]))
    with implementation(name) if name != "default" else using_kernels(name):
        found, counted = torch.empty_like(elements), torch.tensor(7)
        definition.quantize(x, scales, element, found, counted)
        assert_same(found, elements)
        assert_same(counted[None], count)
        mean = torch.empty_like(means)
        definition.dequantize(found, scales, element, mean)
        assert_same(mean, means)
        other, _ = quantized(x, maxima, 8.0, rule, width)
        assert not torch.equal(other, elements)


def every_pair(width: int) -> tuple[Tensor, Tensor]:
    """Packed elements of 35 blocks or more, in any order: each pair of codes but those with E4M3's NaN, which
    no cast gives."""
    codes = torch.tensor([c for c in range(1 << width) if width != 8 or c & 0x7F != 0x7F], dtype=torch.int32)
    pairs = torch.cartesian_prod(codes, codes).T
    pairs = torch.nn.functional.pad(pairs, (0, max(-pairs.shape[1] % 32, 35 * 32 - pairs.shape[1])))
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(width))]
    return packed(pairs[0], width), packed(pairs[1], width)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_all_pairs_equal_the_definition(name: str, width: int) -> None:
    own, message = every_pair(width)
    block = definition.block_bytes(BY_WIDTH[width])
    for blocks, offset in ((own.numel() // block, 0), (17, 0), (16, 1), (1, 0), (35, 3)):
        part = slice(0, blocks * block)
        with using_kernels("default"):
            sums, count = own[part].clone(), torch.tensor(7)
            definition.add(sums, message[part], BY_WIDTH[width], count)
        with implementation(name):
            out, room = surrounded(blocks * block, torch.uint8, offset)
            out.copy_(own[part])
            counted = torch.tensor(7)
            definition.add(out, misaligned(message[part], offset), BY_WIDTH[width], counted)
            assert_same(out, sums)
            assert int(counted) == int(count)
            assert_room_is_untouched(room, out)


@pytest.mark.parametrize("width", WIDTHS)
def test_threads_change_nothing(width: int) -> None:
    x = gradient("heavy_tail", 1 << 20)
    maxima = block_maxima(x) * 0.5
    results = []
    with implementation("base"):
        for threads in (1, 3):
            torch.set_num_threads(threads)
            try:
                elements, count = quantized(x, maxima, 1.5, "bf16_mu", width)
                definition.add(elements, elements.clone(), BY_WIDTH[width], count)
                mean = dequantized(elements, maxima, 1.5, "bf16_mu", width, x.numel(), x.dtype, 0)
                results.append((block_maxima(x), elements, count, mean))
            finally:
                torch.set_num_threads(1)
    assert results[0][2] > 1000
    for together, alone in zip(*results, strict=True):
        assert_same(together, alone)


def test_float16_goes_through_float32() -> None:
    x = gradient("normal", 1000).half()
    scales = SharedScales(block_maxima(x), 2.0, "bf16_mu", 2)
    element, means = BY_WIDTH[8], []
    for name in ("default", "auto"):
        with using_kernels(name):
            out, count = torch.zeros(packed_bytes(1000, 8), dtype=torch.uint8), torch.tensor(0)
            definition.quantize(x, scales, element, out, count)
            means.append(torch.empty_like(x))
            definition.dequantize(out, scales, element, means[-1])
    assert_same(means[1], means[0])


@pytest.mark.parametrize("name", ["base", "emulated"])
def test_refuse_what_does_not_fit(name: str) -> None:
    x = gradient("normal", 1000)
    maxima, packed, count = block_maxima(x), torch.zeros(1024, dtype=torch.uint8), torch.tensor(0)
    scales, e3m2, e4m3 = SharedScales(maxima, 1.0, "bf16_mu", 0), BY_WIDTH[6], BY_WIDTH[8]
    with implementation(name):
        for bad in (x.double(), x[::2]):
            with pytest.raises(ValueError, match="mxfp_maxima: x must be a contiguous torch.float32"):
                write_maxima(bad, maxima)
        with pytest.raises(ValueError, match="elements must be a contiguous torch.uint8 of 768 elements"):
            definition.quantize(x, scales, e3m2, packed[:767], count)
        with pytest.raises(ValueError, match="mu_place must be a contiguous torch.float32 of 1 elements"):
            placed = replace(scales, mu_place=torch.ones(1).double())
            definition.quantize(x, placed, e3m2, packed[:768], count)
        with pytest.raises(ValueError, match="saturated must be a contiguous torch.int64 of 1 elements"):
            definition.add(packed, packed, e4m3, count.int())
        with pytest.raises(RuntimeError, match="mxfp_dequantize on cpu: an argument is out of range"):
            definition.dequantize(packed, scales, e4m3, x)
        with pytest.raises(RuntimeError, match="mxfp_add on cpu: an argument is out of range"):
            own, given = packed[:40], packed[:40].clone()
            fields = {"elements": (own, 40), "message": (given, 40), "saturated": (count, 1)}
            library = library_for(x.device)
            assert library is not None
            run(library, "mxfp_add", x.device, **fields, numel=40, width=8)
