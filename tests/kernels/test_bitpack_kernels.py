"""Bit streams: every implementation gives the definition's bytes and values and touches nothing else."""

from __future__ import annotations

import pytest
import torch
from implementations import IMPLEMENTATIONS, defined, implementation
from inputs import assert_same, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import (
    add_and_pack,
    pack,
    packed,
    packed_bytes,
    unpack,
    unpack_add,
    write_values,
)

WIDTHS = range(1, 33)
MANY = (1, 4, 7, 12, 16, 19, 27, 31, 32)
ROOM = 64
"""Bytes around an output that must stay as they are."""


def codes(numel: int, bits: int, seed: int = 0) -> Tensor:
    """int32 of all bit patterns of `bits` bits; the first and last ones are the extremes."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 1 << bits, (numel,), generator=generator)
    values[:3], values[-3:] = (1 << bits) - 1, (1 << bits) - 1
    return values.to(torch.int32)


def surrounded(x: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """A copy of `x` at an address `offset` elements past an aligned one, and the poisoned room it lies in."""
    room = poisoned(x.numel() + 2 * ROOM, x.dtype)
    room[ROOM + offset : ROOM + offset + x.numel()] = x
    return room[ROOM + offset : ROOM + offset + x.numel()], room


def assert_room_is_untouched(room: Tensor, numel: int, offset: int) -> None:
    fresh = poisoned(numel + 2 * ROOM, room.dtype)
    fresh[ROOM + offset : ROOM + offset + numel] = room[ROOM + offset : ROOM + offset + numel]
    assert_same(room, fresh)


def packed_and_added(values: Tensor, bits: int, before: Tensor) -> tuple[Tensor, Tensor]:
    """The stream of `values`, and their sums with others."""
    stream, sums = poisoned(packed_bytes(values.numel(), bits), torch.uint8), before.clone()
    pack(values, bits, stream)
    assert_same(unpack(stream, bits), values)
    unpack_add(stream, bits, sums)
    return stream, sums


def check(name: str, bits: int, numel: int, offset: int) -> None:
    values, before = codes(numel, bits), codes(numel, 32, seed=1)
    stream, sums = defined(packed_and_added, values, bits, before)
    with implementation(name):
        out, room = surrounded(poisoned(stream.numel(), torch.uint8, seed=1), offset)
        pack(misaligned(values, offset), bits, out)
        assert_same(out, stream)
        assert_room_is_untouched(room, stream.numel(), offset)
        unpacked, room = surrounded(poisoned(numel, torch.int32, seed=1), offset)
        write_values(out, bits, unpacked)
        assert_same(unpacked, values)
        assert_room_is_untouched(room, numel, offset)
        added, room = surrounded(before, offset)
        unpack_add(out, bits, added)
        assert_same(added, sums)
        assert_room_is_untouched(room, numel, offset)


def summands(numel: int, bits: int) -> tuple[Tensor, Tensor]:
    """Values whose sums have `bits` bits: the two differ in length by a bit."""
    if bits == 1:
        first = codes(numel, 1)
        return first, 1 - first
    first, second = codes(numel, 32 if bits == 32 else bits - 1), codes(numel, max(bits - 1, 1), seed=1)
    return first, second


def added_and_packed(bits: int, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The stream of sums, and the sums."""
    stream, out = (poisoned(packed_bytes(first.numel(), bits), torch.uint8) for _ in range(2))
    pack(second, bits, stream)
    sums = first.clone()
    add_and_pack(stream, bits, first, out, sums=sums)
    assert_same(sums, first + second)
    assert_same(unpack(out, bits), sums)
    return out, sums


def check_sums(name: str, bits: int, numel: int, offset: int) -> None:
    first, second = summands(numel, bits)
    expected, sums = defined(added_and_packed, bits, first, second)
    stream = misaligned(packed(second, bits), offset)
    with implementation(name):
        for kept in ("nowhere", "elsewhere", "in place"):
            own, room = surrounded(first, offset)
            apart, room_apart = surrounded(poisoned(numel, torch.int32, seed=1), offset)
            out, room_out = surrounded(poisoned(stream.numel(), torch.uint8, seed=1), offset)
            into = {"nowhere": None, "elsewhere": apart, "in place": own}[kept]
            add_and_pack(stream, bits, own, out, sums=into)
            assert_same(out, expected)
            assert_same(own, sums if kept == "in place" else first)
            if kept == "elsewhere":
                assert_same(apart, sums)
            for whole, length in ((room, numel), (room_apart, numel), (room_out, stream.numel())):
                assert_room_is_untouched(whole, length, offset)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_sums_equal_the_definition(name: str, bits: int) -> None:
    for numel in (8, 120, 264, 1400):
        check_sums(name, bits, numel, 0)
    for offset in (1, 2, 4):
        check_sums(name, bits, 424, offset)
    if bits in (8, 12):
        check_sums(name, bits, 40_000, 0)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_equal_the_definition(name: str, bits: int) -> None:
    for numel in (8, 120, 136, 264, 1400):
        check(name, bits, numel, 0)
    for offset in (1, 2, 4):
        check(name, bits, 424, offset)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("bits", MANY)
def test_long_streams_equal_the_definition(name: str, bits: int) -> None:
    """More than a grid of the emulation holds at a time."""
    check(name, bits, 40_000, 0)


@pytest.mark.parametrize("bits", [3, 20, 32])
def test_threads_change_nothing(bits: int) -> None:
    values = codes((1 << 21) + 8, bits)
    alone, together = (poisoned(packed_bytes(values.numel(), bits), torch.uint8, seed) for seed in (0, 1))
    sums = [torch.ones_like(values), torch.ones_like(values)]
    with implementation("base"):
        pack(values, bits, alone)
        unpack_add(alone, bits, sums[0])
        torch.set_num_threads(3)
        try:
            pack(values, bits, together)
            assert_same(unpack(together, bits), values)
            unpack_add(together, bits, sums[1])
        finally:
            torch.set_num_threads(1)
    assert_same(together, alone)
    assert_same(sums[1], sums[0])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_nothing_is_packed_to_nothing(name: str) -> None:
    empty = torch.empty(0, dtype=torch.int32)
    with implementation(name):
        pack(empty, 5, torch.empty(0, dtype=torch.uint8))
        assert unpack(torch.empty(0, dtype=torch.uint8), 5).numel() == 0


@pytest.mark.parametrize("name", ["base", "emulated"])
def test_refuse_what_does_not_fit(name: str) -> None:
    values, stream = codes(64, 5), torch.zeros(40, dtype=torch.uint8)
    with implementation(name):
        for bad in (values.long(), values[::2]):
            with pytest.raises(ValueError, match="pack_bits: codes_in must be a contiguous torch.int32"):
                pack(bad, 5, stream)
        with pytest.raises(ValueError, match="packed_out must be a contiguous torch.uint8 of 40 elements"):
            pack(values, 5, stream[1:])
        with pytest.raises(ValueError, match="add_bits: packed_in must be .* of 48 elements"):
            unpack_add(stream, 6, values)
        with pytest.raises(RuntimeError, match="pack_bits on cpu: an argument is out of range"):
            pack(codes(8, 8), 33, torch.zeros(33, dtype=torch.uint8))
        with pytest.raises(RuntimeError, match="numel=12, bits=2"):
            pack(codes(12, 2), 2, torch.zeros(3, dtype=torch.uint8))
