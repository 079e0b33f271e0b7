"""Keeps the virtual workers' gradients, all of which must exist before the first bucket can be synchronized.

Gradients are kept bit for bit, in memory or in a file without a name, which is gone with the process however
that ends. Then a step needs the memory of one bucket times the workers, not of the model.
"""

from __future__ import annotations

import os
import tempfile
from typing import Protocol

import psutil
import torch
from torch import Tensor


class GradientStore(Protocol):
    """The gradients of one step by (rank, bucket)."""

    def put(self, rank: int, bucket: int, x: Tensor) -> None:
        """Keeps a copy of `x`, (numel,), until the next `clear`."""
        ...

    def get(self, rank: int, bucket: int) -> Tensor:
        """Returns what was put there; the caller must not write to it."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class MemoryStore:
    """Tensors on their device."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}

    def put(self, rank: int, bucket: int, x: Tensor) -> None:
        self._kept[rank, bucket] = x.clone()

    def get(self, rank: int, bucket: int) -> Tensor:
        return self._kept[rank, bucket]

    def clear(self) -> None:
        self._kept.clear()


class DiskStore:
    """Bytes in one temporary file (in `$TMPDIR`), written and read in the order they come."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="gradwire-gradients-")  # noqa: SIM115 (kept for life)
        self._places: dict[tuple[int, int], tuple[int, torch.dtype, torch.device]] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._end = 0

    def put(self, rank: int, bucket: int, x: Tensor) -> None:
        data = _memory(x.detach().contiguous().cpu().view(torch.uint8))
        self._places[rank, bucket] = (self._end, x.dtype, x.device)
        self._sizes[rank, bucket] = len(data)
        while data:
            written = os.pwrite(self._file.fileno(), data, self._end)
            self._end, data = self._end + written, data[written:]

    def get(self, rank: int, bucket: int) -> Tensor:
        offset, dtype, device = self._places[rank, bucket]
        found = torch.empty(self._sizes[rank, bucket], dtype=torch.uint8)
        left = _memory(found)
        while left:
            read = os.preadv(self._file.fileno(), [left], offset)
            if not read:
                raise OSError("the temporary file of gradients was cut short")
            offset, left = offset + read, left[read:]
        return found.view(dtype).to(device)

    def clear(self) -> None:
        self._places.clear()
        self._sizes.clear()
        self._end = 0


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous uint8 tensor on the CPU."""
    return memoryview(tensor.numpy())  # type: ignore[arg-type]


def make_store(where: str, num_bytes: int, device: torch.device) -> GradientStore:
    """Makes the store for a step's `num_bytes`. `where` is `memory`, `disk` or `auto`, which chooses the disk
    for more than half of the device's free memory."""
    if where == "auto":
        where = "disk" if num_bytes > _free(device) / 2 else "memory"
    return DiskStore() if where == "disk" else MemoryStore()


def _free(device: torch.device) -> int:
    """Bytes of free memory."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    available: int = psutil.virtual_memory().available
    return available
