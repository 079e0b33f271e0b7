"""Slices cut into groups of coordinates that share scales: the messages of hop-wise quantizers.

A message is the codes of all its coordinates as a bit stream (`bitpack`), then the scales of all its groups.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, packed_bytes, unpacked
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library
from gradwire.codecs.sums import SliceCoder


class GroupKernels(Protocol):
    """What encodes and decodes as a `GroupCoder` does."""

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None
    ) -> None:
        """Encode (numel,) `values` in any floating dtype; with a message their sum with what it stands for,
        float32."""
        ...

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        """Write to (numel,) float32 `values`, or add to them."""
        ...


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
        """Encode `values` in any floating dtype."""
        self._encode(values, first, out, None)

    def accumulate_encode(self, message: Tensor, first: int, sums: Tensor, out: Tensor) -> None:
        self._encode(sums, first, out, message)

    def _encode(self, values: Tensor, first: int, out: Tensor, message: Tensor | None) -> None:
        library, numel = library_for(values.device), values.numel()
        if library is not None and self.kernels is not None:
            self.kernels.encode(library, values, first, out, message)
            return
        total = values.to(torch.float32)
        if message is not None:
            total = total + self._values(message, numel)
        scales, codes = self.quantize(self._rows(total), first, numel)
        code_part, scale_part = self.split(out, numel)
        scale_part.copy_(scales.view(-1).view(torch.uint8))
        code_part.copy_(packed(codes.view(-1)[: -(-numel // 8) * 8], self.bits))

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
        decoded = self._values(message, values.numel())
        values.copy_(values + decoded if add else decoded)

    def _values(self, message: Tensor, numel: int) -> Tensor:
        """What a message stands for, (numel,) float32."""
        codes, scales = self.split(message, numel)
        # Scales lie anywhere: they are copied to where they can be read.
        scales = scales.clone().view(self.scale_dtype).view(-(-numel // self.group), self.scales_per_group)
        return self.dequantize(scales, self._rows(unpacked(codes, self.bits))).view(-1)[:numel]

    def split(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """The bytes of a message's codes and of its scales, as views."""
        end = packed_bytes(numel, self.bits)
        return message[:end], message[end:]

    def _rows(self, flat: Tensor) -> Tensor:
        """As (groups, group), the last group padded with zeros; a view where possible."""
        padding = -flat.numel() % self.group
        return (torch.nn.functional.pad(flat, (0, padding)) if padding else flat).view(-1, self.group)
