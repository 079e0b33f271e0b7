"""Slices cut into groups of coordinates that share scales: the messages of hop-wise quantizers.

A message is the scales of all its groups, then the codes of all its coordinates as a bit stream (`bitpack`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.bitpack import pack, packed_bytes, unpack

GROUP_SIZES = tuple(1 << power for power in range(3, 17))
"""Powers of two, so that groups are whole bytes and `fold` their sums; at most a `TILE`."""

TILE = 1 << 16
"""Coordinates processed at a time: temporaries stay near a core, the cost of a call is spread."""


@dataclass(frozen=True)
class Tile:
    """Some groups of a slice: its coordinates from `start` to `stop`, and their parts of the message."""

    start: int
    stop: int
    scales: Tensor
    codes: Tensor


@dataclass(frozen=True)
class GroupCoder(ABC):
    """A `SliceCoder` that sends scales for every `group` coordinates and `bits` bits for each of them."""

    group: int
    bits: int

    scale_dtype: ClassVar[torch.dtype] = torch.float32

    @property
    def scales_per_group(self) -> int:
        return 1

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
        return -(-numel // self.group) * self._scale_bytes + packed_bytes(numel, self.bits)

    def _tiles(self, message: Tensor, numel: int) -> Iterator[Tile]:
        scale_bytes = -(-numel // self.group) * self._scale_bytes
        all_scales, all_codes = message[:scale_bytes], message[scale_bytes:]
        for start in range(0, numel, TILE):
            stop = min(start + TILE, numel)
            groups = slice(
                start // self.group * self._scale_bytes, -(-stop // self.group) * self._scale_bytes
            )
            codes = slice(packed_bytes(start, self.bits), packed_bytes(stop, self.bits))
            yield Tile(start, stop, all_scales[groups], all_codes[codes])

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        for tile in self._tiles(out, values.numel()):
            numel = tile.stop - tile.start
            rows = self._rows(values[tile.start : tile.stop])
            scales, codes = self.quantize(rows, first + tile.start, numel)
            tile.scales.view(self.scale_dtype).copy_(scales.view(-1))
            pack(codes.view(-1)[: -(-numel // 8) * 8], self.bits, tile.codes)

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        values = torch.empty(numel, dtype=torch.float32, device=message.device)
        for tile in self._tiles(message, numel):
            codes = self._rows(unpack(tile.codes, self.bits))
            scales = tile.scales.view(self.scale_dtype).view(len(codes), self.scales_per_group)
            target = values[tile.start : tile.stop]
            target.copy_(self.dequantize(scales, codes).view(-1)[: len(target)])
        return values

    def _rows(self, flat: Tensor) -> Tensor:
        """As (groups, group), the last group padded with zeros; a view where possible."""
        padding = -flat.numel() % self.group
        return (torch.nn.functional.pad(flat, (0, padding)) if padding else flat).view(-1, self.group)
