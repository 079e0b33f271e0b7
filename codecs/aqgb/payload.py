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

from gradwire.codecs.aqgb.encoding import EMBEDDED, FULL, SINGLE, Encoding
from gradwire.codecs.aqgb.rounding import RandomRounding
from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.slices import SliceCoder
from gradwire.codecs.tfp.coder import Refinement

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


def payload_bytes(numel: int, bits: int, encoding: Encoding = EMBEDDED) -> int:
    """Bytes of the first `bits` of `numel` coordinates, scales included."""
    return encoding.payload_bytes(numel, bits)


@dataclass
class Payload:
    """The first `bits` of a block of `numel` coordinates: (payload_bytes,) uint8.

    A payload that was refined to 32 bits is `refined`: it holds 32 bits of the encoding's base, not float32.
    `rounding` is what it was rounded with, if it was and can be refined. `first` is the index of its first
    coordinate in the bucket.
    """

    numel: int
    bits: int
    message: Tensor
    refined: bool = False
    encoding: Encoding = EMBEDDED
    rounding: RandomRounding | None = None
    first: int = 0

    @classmethod
    def of(
        cls,
        x: Tensor,
        bits: int,
        encoding: Encoding = EMBEDDED,
        random: CoordinateBits | None = None,
        first: int = 0,
    ) -> Payload:
        """Encodes (numel,) floating-point `x`, which is not changed: the bucket's coordinates from `first` on
        (a multiple of 32). Rounds with `random`, otherwise towards zero."""
        message = torch.empty(encoding.payload_bytes(x.numel(), bits), dtype=torch.uint8, device=x.device)
        encoding.coder(bits, random).encode(x.to(torch.float32), first, message)
        return cls(x.numel(), bits, message, False, encoding, rounding_of(bits, random, first), first)

    def refine(self, plane: Tensor, more: int) -> None:
        """Appends what refines the payload to `more` bits of every coordinate, (refinement_bytes,) uint8, or
        has it replace the payload if it begins anew."""
        if self.encoding.begins_anew(self.bits):
            joined = plane
        else:
            refinement = Refinement(self.bits, more, self.encoding.base)
            size = refinement.coder.num_bytes(self.numel)
            joined = torch.empty(size, dtype=torch.uint8, device=plane.device)
            refinement.join(self.message, plane, self.numel, joined)
        self.bits, self.message, self.refined = more, joined, True

    def decode_into(self, values: Tensor) -> None:
        """Writes the decoded values to (numel,) float32 `values`."""
        self._own_coder().decode_into(self.message, self.first, values)
        if self.refined and self.rounding is not None:
            self.rounding.restore_(values, self.bits)

    def add_to(self, sums: Tensor) -> None:
        """Adds the decoded values to (numel,) float32 `sums`."""
        if self.refined and self.rounding is not None:
            values = torch.empty_like(sums)
            self.decode_into(values)
            sums.add_(values)
        else:
            self._own_coder().accumulate(self.message, self.first, sums)

    def _own_coder(self) -> SliceCoder:
        return self.encoding.refined_coder(self.bits) if self.refined else self.encoding.coder(self.bits)


def rounding_of(bits: int, random: CoordinateBits | None, first: int = 0) -> RandomRounding | None:
    """The rounding that refinements of a payload of `bits` have to know of, of coordinates from `first` on;
    None without one.

    Fewer bits than float32 can be cut to are not refined but sent anew, as rounded at the fewest.
    """
    return None if random is None or bits == FULL else RandomRounding(random, max(bits, SINGLE), first)


def plane_of(x: Tensor, bits: int, more: int, encoding: Encoding = EMBEDDED) -> Tensor:
    """The bytes that refine (numel,) `x` from `bits` to `more` bits: (refinement_bytes,) uint8.

    If the payload was rounded, `x` are the patterns of `RandomRounding.dithered`.
    """
    size = encoding.refinement_bytes(x.numel(), bits, more)
    plane = torch.empty(size, dtype=torch.uint8, device=x.device)
    if encoding.begins_anew(bits):
        encoding.refined_coder(more).encode(x, 0, plane)
    else:
        Refinement(bits, more, encoding.base).plane(x, plane)
    return plane


def mean_of(parts: Sequence[Payload], device: torch.device) -> Tensor:
    """The mean of all ranks' payloads, added in rank order: (numel,) float32."""
    first, *others = parts
    sums = torch.empty(first.numel, dtype=torch.float32, device=device)
    first.decode_into(sums)
    for part in others:
        part.add_to(sums)
    return sums.div_(constant(len(parts), sums))
