"""Partitions and packets: every coordinate once, greedily, and the arithmetic of them."""

from __future__ import annotations

import random
from functools import partial

import pytest

from gradwire.codecs.aqgb.payload import (
    HEADER,
    NOTHING,
    Packing,
    num_packets,
    packets,
    packing,
    partitions_per_packet,
)
from gradwire.codecs.options.quantized import PARTITIONS
from gradwire.codecs.tfp.coder import coder_of, plane_bytes


def first_bits(numel: int, bits: int) -> int:
    return coder_of(bits, "embedded").num_bytes(numel)


def draws(count: int) -> list[tuple[int, int, int, partial[int]]]:
    """(coordinates, partition, packet, size): payloads of 2 to 32 bits, and planes of 1 to 30 bits."""
    drawn, found = random.Random(12), []
    while len(found) < count:
        partition, bits = drawn.choice(PARTITIONS), drawn.randint(2, 31)
        size = partial(first_bits, bits=bits)
        if drawn.random() < 0.5:
            size = partial(plane_bytes, bits=bits, more=drawn.randint(bits + 1, 32))
        packet = drawn.randint(512, 65_507)
        if size(partition) <= packet:
            numel = drawn.choice([drawn.randint(1, 200_000), partition * drawn.randint(1, 9), 1])
            found.append((numel, partition, packet, size))
    return found


def test_packets_hold_successive_partitions_as_many_as_fit() -> None:
    for numel, partition, packet, size in draws(300):
        cut = list(packets(numel, partition, packet, size))
        at = 0
        for index, one in enumerate(cut):
            assert one.first == at and one.first % partition == 0
            at += one.coordinates
            is_last = index == len(cut) - 1
            assert one.coordinates % partition == 0 or is_last
            assert one.num_bytes == size(one.coordinates) <= packet
            if not is_last:
                assert one.num_bytes + size(min(partition, numel - at)) > packet
        assert at == numel
        assert sum(one.num_bytes for one in cut) == size(numel)
        assert packing(numel, partition, packet, size) == (len(cut), size(numel), HEADER * len(cut))
        assert num_packets(numel, partition, packet, size) == len(cut)


def test_a_packet_of_one_partition() -> None:
    size = partial(first_bits, bits=4)
    exact = size(1024)
    assert partitions_per_packet(1024, exact, size) == 1
    assert packing(10 * 1024, 1024, exact, size) == (10, 10 * exact, 10 * HEADER)
    assert packing(10 * 1024 + 1, 1024, exact, size).packets == 11
    assert packing(10 * 1024 + 1, 1024, exact + size(1), size).packets == 10


def test_packets_smaller_than_a_partition_are_refused() -> None:
    size = partial(first_bits, bits=32)
    with pytest.raises(ValueError, match=r"codec\.packet=1024 .*codec\.partition=512 .* larger packets, or"):
        packing(10, 512, 1024, size)
    with pytest.raises(ValueError, match=r"codec\.packet=1024"):
        next(packets(10, 512, 1024, size))


def test_packings_add_up() -> None:
    assert Packing(1, 100, 28) + Packing(2, 300, 56) == (3, 400, 84)
    assert (Packing(3, 400, 84).overhead, NOTHING.overhead) == (0.21, 0.0)
    assert list(packets(0, 256, 4096, lambda numel: numel)) == []
    assert packing(0, 256, 4096, lambda numel: numel) == NOTHING
