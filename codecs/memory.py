"""Memory for tensors that outlive a hop, reused once it is free.

The operating system faults in and zeroes each page of a newly allocated large block, which for the mean of a
bucket takes longer than computing it. Here a block is lent to one tensor and becomes free when the last
tensor, view or array on it is gone, as with any allocator. GPU memory already has PyTorch's caching
allocator.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque

import torch
from torch import Tensor

SMALLEST = 1 << 22
"""Bytes from which blocks are kept: smaller ones the C library hands out again by itself."""

LIMIT = 1 << 29
"""The most bytes that are kept while they are free."""


class FreeBlocks:
    """Free blocks of host memory. Threads may share an instance: a block that one thread is examining is
    hidden from the others."""

    def __init__(self, limit: int = LIMIT) -> None:
        """Keeps up to `limit` bytes."""
        self._free = deque[Tensor]()
        self._limit = limit

    def take(self, num_bytes: int) -> Tensor:
        """(num_bytes,) uint8, contents undefined; its storage cannot be resized."""
        block = self._find(num_bytes)
        if block is None:
            block = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        lent = block.numpy()  # lives as long as any tensor on it
        weakref.finalize(lent, self._give_back, block).atexit = False
        return torch.from_numpy(lent)

    @property
    def num_bytes(self) -> int:
        """Bytes that are free."""
        return sum(block.numel() for block in tuple(self._free))

    def _find(self, num_bytes: int) -> Tensor | None:
        with contextlib.suppress(IndexError):  # another thread took the last one
            for _ in range(len(self._free)):
                block = self._free.popleft()
                if block.numel() == num_bytes:
                    return block
                self._free.append(block)
        return None

    def _give_back(self, block: Tensor) -> None:
        self._free.append(block)
        with contextlib.suppress(IndexError):
            while self.num_bytes > self._limit:
                self._free.popleft()  # of a size that is not asked for any more, if there is one


_blocks = FreeBlocks()


def empty(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized tensor, (numel,), of this dtype, in reused memory if there is some."""
    num_bytes = numel * dtype.itemsize
    if device.type != "cpu" or num_bytes < SMALLEST:
        return torch.empty(numel, dtype=dtype, device=device)
    return _blocks.take(num_bytes).view(dtype)


def copied(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of `x`, of any shape, in this dtype, in reused memory if there is some."""
    return empty(math.prod(x.shape), dtype, x.device).view(x.shape).copy_(x)
