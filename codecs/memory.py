"""Memory for tensors that outlive a hop, handed out again once it is free.

The system gives a large block page by page, each one faulted in and zeroed: for the mean of a bucket that
takes longer than computing it. Here a block is lent to one tensor, and is free when the last tensor, view or
array on it is gone, as with any allocator. Memory of GPUs has PyTorch's own.
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
    """Blocks of the host's memory that are free. Threads may share it: what one of them is looking through,
    another does not find."""

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
    """(numel,) of this dtype, contents undefined, in memory that others have left where there is some."""
    num_bytes = numel * dtype.itemsize
    if device.type != "cpu" or num_bytes < SMALLEST:
        return torch.empty(numel, dtype=dtype, device=device)
    return _blocks.take(num_bytes).view(dtype)


def copied(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of `x`, of any shape, in this dtype, in such memory."""
    return empty(math.prod(x.shape), dtype, x.device).view(x.shape).copy_(x)
