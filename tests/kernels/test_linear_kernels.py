"""Linear quantizers: every implementation gives the definition's bytes and values."""

from __future__ import annotations

import itertools

import pytest
import torch
from implementations import EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.linear import LinearQuantizer, RoundingNoise
from gradwire.codecs.linear.definition import (
    MessageFormat,
    linear_add,
    linear_dequantize,
    linear_quantize,
    linear_reduce,
)

NOISE = RoundingNoise((0x8BAD_F00D, 0xFFFF_FFFF), rank=5, draw=1)

DTYPES = (torch.float32, torch.bfloat16)

QUANTIZERS = [
    LinearQuantizer(bits, group, scales, hadamard)
    for (bits, hadamard), (group, scales) in zip(
        itertools.cycle(itertools.product((4, 8), (False, True))),
        itertools.product((32, 64, 128, 256, 512, 1024, 2048), ("float32", "bfloat16")),
        strict=False,
    )
] + [LinearQuantizer(bits, 128, "float32", not hadamard) for bits in (4, 8) for hadamard in (False, True)]


def quantized(quantizer: LinearQuantizer, x: Tensor, seed: int = 0, first: int = 0) -> Tensor:
    message = poisoned(quantizer.message_bytes(x.numel()), torch.uint8, seed)
    quantizer.quantize(x, message, NOISE if quantizer.rounding == "stochastic" else None, first)
    return message


def messages_of(quantizer: LinearQuantizer, x: Tensor, count: int) -> Tensor:
    """Messages of multiples of `x`; rows are further apart than they are long."""
    size = quantizer.message_bytes(x.numel())
    messages = poisoned(count * (size + 48), torch.uint8).view(count, size + 48)[:, :size]
    for i, message in enumerate(messages):
        quantizer.quantize(x * (i + 1), message)
    return messages


def decoded_and_added(quantizer: LinearQuantizer, message: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    decoded, changed = torch.empty_like(target), target.clone()
    quantizer.dequantize(message, decoded)
    quantizer.add(message, changed)
    return decoded, changed


def sums_of(
    quantizer: LinearQuantizer, x: Tensor, dtype: torch.dtype
) -> tuple[Tensor, list[tuple[int, bool, Tensor]]]:
    """Three messages, and the sums of one, two and three of them, transformed or not."""
    messages, sums = messages_of(quantizer, x, 3), []
    for count, hadamard in itertools.product((1, 2, 3), (False, True)):
        sums.append((count, hadamard, poisoned(x.numel(), dtype)))
        quantizer.reduce(messages[:count], sums[-1][2], hadamard)
    return messages, sums


def sum_of(quantizer: LinearQuantizer, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """So many messages and their sum."""
    messages, out = messages_of(quantizer, x, count), poisoned(x.numel(), torch.float32)
    quantizer.reduce(messages, out)
    return messages, out


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_messages_equal_the_definition(name: str, dtype: torch.dtype, kind: str) -> None:
    for quantizer in QUANTIZERS:
        x = gradient(kind, 4197).to(dtype)
        expected = defined(quantized, quantizer, x)
        with implementation(name):
            assert_same(quantized(quantizer, x, seed=1), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("numel", [1, 31, 32, 33, 127, 2047, 2048, 2049, 6200])
def test_lengths_and_addresses_change_nothing(name: str, numel: int) -> None:
    for quantizer, dtype, offset in itertools.product(QUANTIZERS, DTYPES, (1, 0)):
        x = misaligned(gradient("mixed", numel).to(dtype), offset)
        out, target = misaligned(torch.zeros(numel, dtype=dtype), offset), misaligned(x * 7, offset)
        message = defined(quantized, quantizer, x)
        decoded, changed = defined(decoded_and_added, quantizer, message, target)
        with implementation(name):
            assert_same(quantized(quantizer, x, seed=1), message)
            out.fill_(torch.nan)
            quantizer.dequantize(message, out)
            quantizer.add(message, target)
        assert_same(out, decoded)
        assert_same(target, changed)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("numel", [100, 2048, 4133])
def test_stochastic_rounding_has_the_same_bits(name: str, bits: int, hadamard: bool, numel: int) -> None:
    first = (1 << 35) - (1 << 14)  # counters near the end of their word
    for dtype, kind in itertools.product(DTYPES, ("normal", "heavy_tail", "nan", "tiny")):
        quantizer = LinearQuantizer(bits, 64, "float32", hadamard, rounding="stochastic")
        x = gradient(kind, numel).to(dtype)
        expected = defined(quantized, quantizer, x, 0, first)
        with implementation(name):
            assert_same(quantized(quantizer, x, seed=1, first=first), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_sums_equal_the_definition(name: str, dtype: torch.dtype, kind: str) -> None:
    """The emulation takes long: each way to emulate has every third quantizer of most kinds."""
    turns = list(EMULATED)
    chosen = QUANTIZERS
    if name in turns and kind not in ("mixed", "nan"):
        chosen = QUANTIZERS[turns.index(name) :: len(turns)]
    for quantizer in chosen:
        messages, sums = defined(sums_of, quantizer, gradient(kind, 3077), dtype)
        for count, hadamard, expected in sums:
            out = poisoned(3077, dtype, seed=1)
            with implementation(name):
                quantizer.reduce(messages[:count], out, hadamard)
            assert_same(out, expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_sums_of_many_messages(name: str) -> None:
    for quantizer, numel in itertools.product(QUANTIZERS[:4], (300, 2500)):
        messages, expected = defined(sum_of, quantizer, gradient("normal", numel), 35)
        out = poisoned(numel, torch.float32, seed=1)
        with implementation(name):
            quantizer.reduce(messages, out)
        assert_same(out, expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_than_a_grid_has_at_a_time(name: str, dtype: torch.dtype) -> None:
    numel = 70_001
    x = gradient("heavy_tail", numel).to(dtype)
    for quantizer in (LinearQuantizer(4, 128, hadamard=True), LinearQuantizer(8, 2048, "bfloat16")):
        message = defined(quantized, quantizer, x)
        expected, _ = defined(decoded_and_added, quantizer, message, x)
        with implementation(name):
            assert_same(quantized(quantizer, x, seed=1), message)
            out = poisoned(numel, dtype)
            quantizer.dequantize(message, out)
        assert_same(out, expected)


def test_threads_change_nothing() -> None:
    x = gradient("normal", 1 << 20)
    quantizer = LinearQuantizer(hadamard=True)
    with implementation("base"):
        alone, out, other = quantized(quantizer, x), torch.empty_like(x), torch.empty_like(x)
        quantizer.dequantize(alone, out)
        torch.set_num_threads(3)
        try:
            together = quantized(quantizer, x, seed=1)
            quantizer.dequantize(alone, other)
        finally:
            torch.set_num_threads(1)
    assert_same(together, alone)
    assert_same(other, out)


def test_refuse_what_they_cannot_read() -> None:
    settings = (MessageFormat(4, 128, "float32"), False)
    x, message = gradient("normal", 1000), torch.zeros(544, dtype=torch.uint8)
    with implementation("base"):
        for bad in (x.double(), x[::2]):
            with pytest.raises(ValueError, match="linear_quantize"):
                linear_quantize(bad, message, *settings)
        with pytest.raises(ValueError, match="contiguous torch.uint8 of 544 elements"):
            linear_quantize(x, message[:-16], *settings)
        with pytest.raises(ValueError, match="contiguous torch.uint8 of 544 elements"):
            linear_reduce(torch.zeros(2, 1088, dtype=torch.uint8)[:, ::2], x, *settings)
        with pytest.raises(ValueError, match="linear_dequantize: .*bfloat16"):
            linear_dequantize(message, x.half(), *settings)
        with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
            linear_add(torch.zeros(545, dtype=torch.uint8)[1:], x, *settings)
        with pytest.raises(RuntimeError, match="out of range"):
            linear_quantize(x, message, *settings, CoordinateBits((0, 0), 0), first=1 << 35)
