"""Payloads of blocks (AQGB §4.4): the first bits of every coordinate, later more of them, and the partitions
and packets that they are cut into.

A partition is `partition` successive coordinates; the last one of a block may be shorter. A packet holds as
many successive partitions of one payload as fit into `packet` bytes, packed greedily. Each partition can be
decoded on its own from its codes and scales, so packets carry exactly the payload's bytes.

Messages are not really cut up: packets describe the datagrams that would carry them, and partitions mark
where a transfer may give way to a more urgent one.

Below 32 bits the codes are those of the embedded base (`tfp.definition`), in which the first bits of a code
are its coarser codes: a payload and the planes that follow it are, byte for byte, the payload of more bits.
At 32 bits a block travels as plain float32, because the embedded base is fixed point and therefore inexact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.casts import Cast
from gradwire.codecs.slices import SliceCoder
from gradwire.codecs.tfp.coder import Refinement, coder_of, plane_bytes

HEADER = 28
"""Bytes of a packet's headers of IPv4 (20) and UDP (8). They are no part of `packet`, as in the paper."""

Size = Callable[[int], int]
"""Bytes of the payload of so many coordinates."""


class Packet(NamedTuple):
    """Partitions that travel together: `coordinates` coordinates of the block, starting at index `first`."""

    first: int
    coordinates: int
    num_bytes: int


class Packing(NamedTuple):
    """A payload cut into packets: their number, their payload bytes and their header bytes."""

    packets: int
    num_bytes: int
    header_bytes: int

    def __add__(self, other: object) -> Packing:
        """Adds the counts of two payloads."""
        if not isinstance(other, Packing):
            return NotImplemented
        return Packing(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def overhead(self) -> float:
        """Header bytes per byte of payload; 0 if nothing is sent."""
        return self.header_bytes / self.num_bytes if self.num_bytes else 0.0


NOTHING = Packing(0, 0, 0)


def partitions_per_packet(partition: int, packet: int, size: Size) -> int:
    """Number of partitions of `partition` coordinates that fit into a packet of `packet` bytes. Raises
    ValueError if not even one fits."""
    fitting = packet // size(partition)
    if not fitting:
        raise ValueError(
            f"codec.packet={packet} holds no partition of codec.partition={partition} coordinates, which "
            f"takes up to {size(partition)} bytes; choose larger packets, or smaller partitions"
        )
    return fitting


def packing(numel: int, partition: int, packet: int, size: Size) -> Packing:
    """Counts the packets of a payload of `numel` coordinates without making it. Raises ValueError if a
    partition does not fit into a packet."""
    per_packet = partitions_per_packet(partition, packet, size)
    whole, left = divmod(numel, partition)
    count, last = -(-whole // per_packet), whole % per_packet or per_packet
    if left and (not whole or last * size(partition) + size(left) > packet):
        count += 1
    num_bytes = whole * size(partition) + (size(left) if left else 0)
    return Packing(count, num_bytes, count * HEADER)


def num_packets(numel: int, partition: int, packet: int, size: Size) -> int:
    """Number of packets that carry `numel` coordinates. Raises ValueError if a partition does not fit into a
    packet."""
    return packing(numel, partition, packet, size).packets


def packets(numel: int, partition: int, packet: int, size: Size) -> Iterator[Packet]:
    """The packets of a payload of `numel` coordinates, in order. Raises ValueError if a partition does not
    fit into a packet."""
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


FULL = 32
"""Bits per coordinate where a block is sent as it is."""

BASE = "embedded"


def _coder(bits: int) -> SliceCoder:
    return Cast(torch.float32) if bits == FULL else coder_of(bits, BASE)


def payload_bytes(numel: int, bits: int) -> int:
    """Bytes of the first `bits` of `numel` coordinates, scales included."""
    return _coder(bits).num_bytes(numel)


def refinement_bytes(numel: int, bits: int, more: int) -> int:
    """Bytes of the planes that refine `numel` coordinates from `bits` bits by `more` bits."""
    return plane_bytes(numel, bits, more)


@dataclass
class Payload:
    """The first `bits` of a block of `numel` coordinates: (payload_bytes,) uint8.

    A payload that was refined to 32 bits is `refined`: it holds 32 bits of the embedded base, not float32.
    """

    numel: int
    bits: int
    message: Tensor
    refined: bool = False

    @classmethod
    def of(cls, x: Tensor, bits: int) -> Payload:
        """Encodes (numel,) floating-point `x`, which is not changed."""
        message = torch.empty(payload_bytes(x.numel(), bits), dtype=torch.uint8, device=x.device)
        _coder(bits).encode(x.to(torch.float32), 0, message)
        return cls(x.numel(), bits, message)

    def refine(self, plane: Tensor, more: int) -> None:
        """Appends the next plane, (refinement_bytes,) uint8, which adds `more` bits to every coordinate."""
        refinement = Refinement(self.bits, more, BASE)
        size = refinement.coder.num_bytes(self.numel)
        joined = torch.empty(size, dtype=torch.uint8, device=plane.device)
        refinement.join(self.message, plane, self.numel, joined)
        self.bits, self.message, self.refined = more, joined, True

    def decode_into(self, values: Tensor) -> None:
        """Writes the decoded values to (numel,) float32 `values`."""
        self._own_coder().decode_into(self.message, 0, values)

    def add_to(self, sums: Tensor) -> None:
        """Adds the decoded values to (numel,) float32 `sums`."""
        self._own_coder().accumulate(self.message, 0, sums)

    def _own_coder(self) -> SliceCoder:
        return coder_of(self.bits, BASE) if self.refined else _coder(self.bits)


def plane_of(x: Tensor, bits: int, more: int) -> Tensor:
    """The plane that extends the payload of (numel,) `x` from `bits` bits by `more`: (refinement_bytes,)
    uint8."""
    plane = torch.empty(plane_bytes(x.numel(), bits, more), dtype=torch.uint8, device=x.device)
    Refinement(bits, more, BASE).plane(x, plane)
    return plane


def mean_of(parts: Sequence[Payload], device: torch.device) -> Tensor:
    """The mean of all ranks' payloads, added in rank order: (numel,) float32."""
    first, *others = parts
    sums = torch.empty(first.numel, dtype=torch.float32, device=device)
    first.decode_into(sums)
    for part in others:
        part.add_to(sums)
    return sums.div_(constant(len(parts), sums))
