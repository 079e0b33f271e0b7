"""TFP: every implementation writes the definition's bytes, and reads them as it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from implementations import EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, WRONG_KEY, assert_same, gradient, key_in_memory, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import pack, packed_bytes
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.slices import GroupCoder
from gradwire.codecs.tfp.coder import (
    Refinement,
    cannot_refine,
    coder_of,
    plane_bytes,
)

RANDOM = CoordinateBits((123456789, 4012345678), 3)

FORMATS = [
    *((bits, "plain", random) for bits in range(2, 33) for random in (None, RANDOM)),
    *((bits, "scaled", random) for bits in range(2, 10) for random in (None, RANDOM)),
    *((bits, "embedded", None) for bits in range(2, 33)),
]

SEVERAL = [
    (4, "scaled", RANDOM),
    (3, "scaled", None),
    (8, "plain", RANDOM),
    (13, "plain", None),
    (9, "embedded", None),
]

PAIRS = [
    (bits, more, base)
    for base in ("plain", "embedded")
    for bits, more in (
        (2, 32),
        (4, 9),
        (7, 9),
        (7, 8),
        (10, 11),
        (10, 32),
        (13, 31),
        (16, 24),
        (31, 32),
        (2, 3),
    )
    if cannot_refine(bits, more, base) is None
]

FIRST = 1 << 20
"""The first coordinate of the slice of the bucket."""

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def sizes(name: str) -> Iterator[tuple[int, int]]:
    """Coordinates, and by how many elements they are misaligned; fewer where a GPU is emulated."""
    yield from ((700, 0), (1537, 1))
    if name in ("base", "v3", "v4"):
        yield from ((1, 0), (8, 3), (31, 0), (512, 0), (1024, 1))


def encoded(coder: GroupCoder, x: Tensor, seed: int) -> Tensor:
    out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
    coder.encode(x, FIRST, out)
    return out


def added(coder: GroupCoder, message: Tensor, x: Tensor, seed: int) -> list[Tensor]:
    """Decoded, added to something, and added to something that is encoded."""
    values, sums = poisoned(x.numel(), torch.float32, seed), x.clone()
    coder.decode_into(message, FIRST, values)
    coder.accumulate(message, FIRST, sums)
    out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
    coder.accumulate_encode(message, FIRST, x, out)
    return [values, sums, out]


def check(name: str, coder: GroupCoder, x: Tensor, same: GroupCoder | None = None) -> None:
    """Compares what `same`, or the coder, does with what the coder does by definition."""
    sums = misaligned(0.5 * gradient("normal", x.numel(), seed=1), 1)
    message = defined(encoded, coder, x, 0)
    expected = defined(added, coder, message, sums, 0)
    coder = same or coder
    with implementation(name):
        assert_same(encoded(coder, x, 1), message)
        results = added(coder, message, sums, 1)
    if name in EMULATED and bool(expected[1].isnan().any()):
        # Messages keep a NaN's sign, and a sum's is the processor's: a GPU makes positive ones.
        expected, results = (
            [*found[:2], coder.decode(found[2], FIRST, x.numel())] for found in (expected, results)
        )
    for actual, wanted in zip(results, expected, strict=True):
        assert_same(actual, wanted)


@every_implementation
def test_every_format(name: str) -> None:
    for bits, base, random in FORMATS:
        for numel, offset in sizes(name):
            check(name, coder_of(bits, base, random), misaligned(gradient("heavy_tail", numel), offset))


@every_implementation
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gradient(name: str, kind: str) -> None:
    """Large ones, too, in formats without scales; those of float32 and bfloat16."""
    for bits, base, random in SEVERAL:
        for dtype in (torch.float32, torch.bfloat16):
            x = gradient(kind, 1100).to(dtype)
            check(name, coder_of(bits, base, random), misaligned(x, 0))
            check(name, coder_of(bits, base, random), misaligned(2.0**15 * x, 1))


@every_implementation
def test_a_key_in_memory(name: str) -> None:
    random = CoordinateBits(WRONG_KEY, RANDOM.rank, key_in_memory(RANDOM.key))
    for bits, base in ((4, "scaled"), (8, "plain"), (13, "plain")):
        for dtype in (torch.float32, torch.bfloat16):
            x = gradient("normal", 1100).to(dtype)
            check(name, coder_of(bits, base, RANDOM), x, coder_of(bits, base, random))


@every_implementation
def test_every_value_of_the_narrow_formats(name: str) -> None:
    """All codes, and what they decode to, also with a scale."""
    for bits in range(2, 10):
        for base in ("plain", "scaled", "embedded"):
            codes = torch.arange(512, dtype=torch.int32) % (1 << bits)
            coder = coder_of(bits, base)
            message = torch.full((coder.num_bytes(512),), 0x3D, dtype=torch.uint8)
            with using_kernels("default"):
                pack(codes, bits, message[: packed_bytes(512, bits)])
                expected = coder.decode(message, 0, 512)
            with implementation(name):
                assert_same(coder.decode(message, 0, 512), expected)


@every_implementation
@pytest.mark.parametrize(("bits", "more", "base"), PAIRS)
def test_planes(name: str, bits: int, more: int, base: str) -> None:
    refinement = Refinement(bits, more, base)
    less, coder = coder_of(bits, base), coder_of(more, base)

    def run(x: Tensor, seed: int) -> list[Tensor]:
        message = encoded(less, x, seed)
        plane = poisoned(plane_bytes(x.numel(), bits, more), torch.uint8, seed)
        refinement.plane(x, plane)
        out = poisoned(coder.num_bytes(x.numel()), torch.uint8, seed)
        refinement.join(message, plane, x.numel(), out)
        values, sums = poisoned(x.numel(), torch.float32, seed), torch.ones(x.numel())
        refinement.decode(message, plane, values)
        refinement.add(message, plane, sums)
        return [plane, out, values, sums]

    for kind, dtype, numel in (("heavy_tail", torch.float32, 1537), ("nan", torch.bfloat16, 700)):
        x = misaligned(gradient(kind, numel).to(dtype), 1)
        with using_kernels("default"):
            expected = run(x, 0)
        with implementation(name):
            results = run(x, 1)
        for actual, wanted in zip(results, expected, strict=True):
            assert_same(actual, wanted)


def test_threads_change_nothing() -> None:
    x, coder = gradient("normal", 1 << 19), coder_of(5, "scaled", RANDOM)
    with implementation("base"):
        alone = encoded(coder, x, 0)
        torch.set_num_threads(3)
        try:
            together = encoded(coder, x, 1)
            values = coder.decode(alone, 0, x.numel())
        finally:
            torch.set_num_threads(1)
        assert_same(together, alone)
        assert_same(values, coder.decode(alone, 0, x.numel()))


def test_messages_may_lie_anywhere() -> None:
    """On a GPU whole vectors are written to aligned ones only."""
    for name in ("v3", "emulated"):
        for bits, base in ((4, "scaled"), (11, "plain")):
            coder, x = coder_of(bits, base, RANDOM), gradient("normal", 1025)
            with using_kernels("default"):
                expected = encoded(coder, x, 0)
            with implementation(name):
                out = misaligned(poisoned(len(expected), torch.uint8), 1)
                coder.encode(x, FIRST, out)
                assert_same(out, expected)
                assert_same(coder.decode(out, 0, 1025), coder.decode(expected, 0, 1025))


def test_refuses_what_it_cannot_read() -> None:
    x, coder = gradient("normal", 1000), coder_of(4, "scaled", RANDOM)
    out = torch.zeros(coder.num_bytes(1000), dtype=torch.uint8)
    with implementation("base"):
        with pytest.raises(
            ValueError, match="tfp_encode: message_out must be a contiguous torch.uint8 of 564"
        ):
            coder.encode(x, 0, out[:-1])
        with pytest.raises(ValueError, match="tfp_encode"):
            coder.encode(x[::2], 0, out)
        with pytest.raises(ValueError, match="tfp_add: values_out must be .* torch.float32 of 1000"):
            coder.accumulate(out, 0, x.double())
        with pytest.raises(RuntimeError, match="tfp_encode on cpu: an argument is out of range"):
            coder.encode(x, 4, out)
    for bits, base in ((1, "plain"), (33, "plain"), (10, "scaled"), (4, "other")):
        with pytest.raises(ValueError, match="tfp: "):
            coder_of(bits, base)
    with pytest.raises(ValueError, match="embedded is rounded towards zero"):
        coder_of(4, "embedded", RANDOM)
