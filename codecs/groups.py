"""Slices cut into groups of coordinates that share scales: the messages of hop-wise quantizers.

A message is the codes of all its coordinates as a bit stream (`bitpack`), then the scales of all its groups.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gradwire.codecs.bitpack import pack, packed_bytes, unpack
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.library import Library
from gradwire.codecs.sums import SliceCoder

GROUP_SIZES = tuple(1 << power for power in range(3, 17))
"""Powers of two, so that groups are whole bytes and `fold` their sums; at most a `TILE`."""

TILE = 1 << 16
"""Coordinates processed at a time: temporaries stay near a core, the cost of a call is spread."""


class GroupKernels(Protocol):
    """What encodes and decodes as a `GroupCoder` does."""

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None
    ) -> None:
        """Of (numel,) `values` in any floating dtype; with a message, of their sum with what it stands for,
        float32."""
        ...

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        """To (numel,) float32 `values`, or added to them."""
        ...


@dataclass(frozen=True)
class Tile:
    """Some groups of a slice: its coordinates from `start` to `stop`, and their bytes of the message."""

    start: int
    stop: int
    codes: Tensor
    scales: Tensor


@dataclass(frozen=True)
class GroupCoder(SliceCoder, ABC):
    """A `SliceCoder` that sends scales for every `group` coordinates and `bits` bits for each of them.

    `quantize` and `dequantize` define the bytes; where there are `kernels` these do it all at once.
    """

    group: int
    bits: int

    scale_dtype: ClassVar[torch.dtype] = torch.float32

    @property
    def scales_per_group(self) -> int:
        return 1

    @property
    def kernels(self) -> GroupKernels | None:
        """Compiled ones, None if there are none."""
        return None

    @abstractmethod
    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        """Scales, (groups, scales_per_group) of `scale_dtype`, and codes < 2^bits, (groups, group) int32.

        `rows` (groups, group) float32 are the bucket's coordinates from `first` on, zeros beyond `numel` of
        them, and not to be written to.
        """

    @abstractmethod
    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        """(groups, group) float32 from what `quantize` returned."""

    @property
    def _scale_bytes(self) -> int:
        return self.scales_per_group * self.scale_dtype.itemsize

    @property
    def unit(self) -> int:
        """As many groups as take a multiple of 16 bytes."""
        group_bytes = self._scale_bytes + packed_bytes(self.group, self.bits)
        return self.group * (16 // math.gcd(16, group_bytes))

    def num_bytes(self, numel: int) -> int:
        return packed_bytes(numel, self.bits) + -(-numel // self.group) * self._scale_bytes

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        """Of `values` in any floating dtype."""
        self._encode(values, first, out, None)

    def accumulate_encode(self, message: Tensor, first: int, sums: Tensor, out: Tensor) -> None:
        self._encode(sums, first, out, message)

    def _encode(self, values: Tensor, first: int, out: Tensor, message: Tensor | None) -> None:
        library, numel = library_for(values.device), values.numel()
        if library is not None and self.kernels is not None:
            self.kernels.encode(library, values, first, out, message)
            return
        received = None if message is None else self.tiles(message, numel)
        for tile in self.tiles(out, numel):
            own = values[tile.start : tile.stop].to(torch.float32)
            if received is not None:
                own = own + self._decoded(next(received))
            scales, codes = self.quantize(self._rows(own), first + tile.start, len(own))
            tile.scales.copy_(scales.view(-1).view(torch.uint8))
            pack(codes.view(-1)[: -(-len(own) // 8) * 8], self.bits, tile.codes)

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        values = torch.empty(numel, dtype=torch.float32, device=message.device)
        self.decode_into(message, first, values)
        return values

    def decode_into(self, message: Tensor, first: int, values: Tensor) -> None:
        self._decode(message, values, add=False)

    def accumulate(self, message: Tensor, first: int, sums: Tensor) -> None:
        self._decode(message, sums, add=True)

    def _decode(self, message: Tensor, values: Tensor, add: bool) -> None:
        library = library_for(values.device)
        if library is not None and self.kernels is not None:
            self.kernels.decode(library, message, values, add)
            return
        for tile in self.tiles(message, values.numel()):
            target = values[tile.start : tile.stop]
            target.add_(self._decoded(tile)) if add else target.copy_(self._decoded(tile))

    def _decoded(self, tile: Tile) -> Tensor:
        """(coordinates of the tile,) float32."""
        groups = -(-(tile.stop - tile.start) // self.group)
        # Scales lie anywhere: they are copied to where they can be read.
        scales = tile.scales.clone().view(self.scale_dtype).view(groups, self.scales_per_group)
        decoded = self.dequantize(scales, self._rows(unpack(tile.codes, self.bits)))
        return decoded.view(-1)[: tile.stop - tile.start]

    def tiles(self, message: Tensor, numel: int) -> Iterator[Tile]:
        """The parts of a slice that are processed at a time."""
        split = packed_bytes(numel, self.bits)
        all_codes, all_scales = message[:split], message[split:]
        for start in range(0, numel, TILE):
            stop = min(start + TILE, numel)
            codes = slice(packed_bytes(start, self.bits), packed_bytes(stop, self.bits))
            groups = slice(
                start // self.group * self._scale_bytes, -(-stop // self.group) * self._scale_bytes
            )
            yield Tile(start, stop, all_codes[codes], all_scales[groups])

    def _rows(self, flat: Tensor) -> Tensor:
        """As (groups, group), the last group padded with zeros; a view where possible."""
        padding = -flat.numel() % self.group
        return (torch.nn.functional.pad(flat, (0, padding)) if padding else flat).view(-1, self.group)
