"""Partitions and packets (AQGB §4.4): how a block's payload is cut, counted in bytes.

A partition is `partition` successive coordinates; the last one of a block has those that are left. A packet
holds as many successive partitions of one payload as fit into `packet` bytes, packed greedily. A partition's
bytes, codes and scales, stand for themselves, so that packets carry exactly the payload.

Messages are not cut up really: packets are what datagrams would carry, and partitions say where a transfer
gives way to a more urgent one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

HEADER = 28
"""Bytes of a packet's headers of IPv4 (20) and UDP (8). They are no part of `packet`, as in the paper."""

Size = Callable[[int], int]
"""Bytes of the payload of so many coordinates."""


class Packet(NamedTuple):
    """Partitions that travel together: `coordinates` from number `first` of the block on."""

    first: int
    coordinates: int
    num_bytes: int


class Packing(NamedTuple):
    """What a payload is as packets: their number, and bytes without headers and of headers."""

    packets: int
    num_bytes: int
    header_bytes: int

    def __add__(self, other: object) -> Packing:
        """Both together."""
        if not isinstance(other, Packing):
            return NotImplemented
        return Packing(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def overhead(self) -> float:
        """Header bytes per byte of payload; 0 where nothing is sent."""
        return self.header_bytes / self.num_bytes if self.num_bytes else 0.0


NOTHING = Packing(0, 0, 0)


def partitions_per_packet(partition: int, packet: int, size: Size) -> int:
    """How many partitions of `partition` coordinates a packet of `packet` bytes holds. Raises ValueError for
    none."""
    fitting = packet // size(partition)
    if not fitting:
        raise ValueError(
            f"codec.packet={packet} holds no partition of codec.partition={partition} coordinates, which "
            f"takes up to {size(partition)} bytes; choose larger packets, or smaller partitions"
        )
    return fitting


def packing(numel: int, partition: int, packet: int, size: Size) -> Packing:
    """The packets of a payload of `numel` coordinates, by arithmetic alone. Raises ValueError if a partition
    does not fit into one."""
    per_packet = partitions_per_packet(partition, packet, size)
    whole, left = divmod(numel, partition)
    count, last = -(-whole // per_packet), whole % per_packet or per_packet
    if left and (not whole or last * size(partition) + size(left) > packet):
        count += 1
    num_bytes = whole * size(partition) + (size(left) if left else 0)
    return Packing(count, num_bytes, count * HEADER)


def num_packets(numel: int, partition: int, packet: int, size: Size) -> int:
    """Packets that carry `numel` coordinates. Raises ValueError if a partition does not fit into one."""
    return packing(numel, partition, packet, size).packets


def packets(numel: int, partition: int, packet: int, size: Size) -> Iterator[Packet]:
    """The packets of a payload of `numel` coordinates, in their order. Raises ValueError if a partition does
    not fit into one."""
    partitions_per_packet(partition, packet, size)
    first = count = num_bytes = 0
    for begin in range(0, numel, partition):
        more = min(partition, numel - begin)
        own = size(more)
        if num_bytes + own > packet:
            yield Packet(first, count, num_bytes)
            first, count, num_bytes = begin, 0, 0
        count, num_bytes = count + more, num_bytes + own
    if count:
        yield Packet(first, count, num_bytes)
