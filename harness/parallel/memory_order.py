"""How DistributedDataParallel lays gradients out in a bucket, and the order of their shapes that codecs see.

DDP gives a gradient the strides of its parameter if they leave no gaps: the transposed view of a contiguous
matrix lies column after column, a convolution in `torch.channels_last` channel after channel. Codecs that see
matrices, and what any codec remembers of a coordinate, need an order that does not depend on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.harness.parallel.gradient_error import MeasuredBucket

Strides = tuple[int, ...]


def permuted_strides(parameter: Tensor) -> Strides | None:
    """The strides of a parameter whose gradient lies in another order than that of its shape; None for all
    others, those with gaps or overlaps too, whose gradients DDP makes contiguous."""
    if parameter.is_contiguous():
        return None
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size != 1 and stride != expected:
            return None
        expected *= size
    return tuple(parameter.stride())


@dataclass(frozen=True)
class MemoryOrder:
    """The bucket of `layout` as it lies in memory: the parameters one after another, those in `permuted` by
    the strides given there."""

    layout: Layout
    permuted: Mapping[str, Strides]

    def logical(self, flat: Tensor) -> Tensor:
        """A bucket, (numel,), with each parameter in the order of its shape; the same tensor if it is so."""
        if not self.permuted:
            return flat
        found = torch.empty_like(flat)
        for (_, source), (_, target) in zip(self.views(flat), self._in_order(found), strict=True):
            target.copy_(source)
        return found

    def in_memory(self, flat: Tensor) -> Tensor:
        """The reverse of `logical`."""
        if not self.permuted:
            return flat
        found = torch.empty_like(flat)
        for (_, source), (_, target) in zip(self._in_order(flat), self.views(found), strict=True):
            target.copy_(source)
        return found

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parameters' places in a bucket as it lies in memory, by name, in their shapes."""
        for name, part in self._in_order(flat):
            strides = self.permuted.get(name)
            yield name, part if strides is None else part.as_strided(part.shape, strides)

    def measured(self, read_raw: Callable[[], Tensor], mean: Tensor) -> MeasuredBucket:
        """What is kept of a measured step in the order of the layout, of a bucket and its mean as they lie in
        memory."""
        return MeasuredBucket(lambda: self.logical(read_raw()), self.logical(mean))

    def _in_order(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        layout = self.layout
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            yield name, flat[offset : offset + math.prod(shape)].view(shape)
