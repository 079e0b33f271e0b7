"""Storage for the inputs of virtual workers' collectives: all workers must have started a collective before
it can run.

These tensors, most of them gradients, are stored bit for bit, in memory or in an unnamed file, which the
system deletes when the process ends. A step then needs the memory of one bucket times the workers, not of the
whole model.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Protocol

import torch
from torch import Tensor


class GradientStore(Protocol):
    """The gradients of one step by (rank, bucket)."""

    def put(self, rank: int, bucket: int, x: Tensor) -> None:
        """Stores a copy of `x`, (numel,), until the next `clear`."""
        ...

    def get(self, rank: int, bucket: int) -> Tensor:
        """Returns the stored tensor; the caller must not write to it."""
        ...

    def clear(self) -> None:
        """Drops everything stored."""
        ...


class MemoryStore:
    """Keeps the tensors on their device. With `in_place` each is where the one of the step before was, as a
    captured round needs it; that memory is not free between steps."""

    def __init__(self, *, in_place: bool = False) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._in_place, self._places = in_place, dict[tuple[int, int], Tensor]()

    def put(self, rank: int, bucket: int, x: Tensor) -> None:
        place = self._places.pop((rank, bucket), None)
        if place is None or place.shape != x.shape or place.dtype != x.dtype:
            self._kept[rank, bucket] = x.clone()
        else:
            self._kept[rank, bucket] = place.copy_(x)

    def get(self, rank: int, bucket: int) -> Tensor:
        return self._kept[rank, bucket]

    def clear(self) -> None:
        if self._in_place and self._kept:
            self._places = dict(self._kept)
        self._kept.clear()

    @property
    def reserved(self) -> int:
        """Bytes of memory that wait for tensors to be put there."""
        return sum(place.nbytes for place in self._places.values())


class DiskStore:
    """Keeps the bytes in one temporary file (in `$TMPDIR`), written in the order in which tensors are
    stored.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="gradwire-gradients-")  # noqa: SIM115 (kept for life)
        weakref.finalize(self, self._file.close)
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
        found = torch.empty(self._sizes[rank, bucket], dtype=torch.uint8, device="cpu")
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


class SpillingStore:
    """Uses memory until a step needs more than half of the free memory there, and the disk for the rest."""

    def __init__(self, device: torch.device, *, in_place: bool = False) -> None:
        self._device, self._left = device, 0.0
        self._memory, self._disk = MemoryStore(in_place=in_place), DiskStore()
        self._stores: dict[tuple[int, int], GradientStore] = {}

    def put(self, rank: int, bucket: int, x: Tensor) -> None:
        if not self._stores:
            self._left = (_free(self._device) + self._memory.reserved) / 2
        self._left -= x.nbytes
        store: GradientStore = self._memory if self._left >= 0 else self._disk
        self._stores[rank, bucket] = store
        store.put(rank, bucket, x)

    def get(self, rank: int, bucket: int) -> Tensor:
        return self._stores[rank, bucket].get(rank, bucket)

    def clear(self) -> None:
        for store in (self._memory, self._disk):
            store.clear()
        self._stores.clear()


def make_store(where: str, device: torch.device, *, in_place: bool = False) -> GradientStore:
    """Makes a store on the `disk`, in the `memory` of the device, or, for `auto`, in memory as far as there
    is room and else on disk. With `in_place`, tensors in memory keep their places from step to step."""
    if where == "auto":
        return SpillingStore(device, in_place=in_place)
    return DiskStore() if where == "disk" else MemoryStore(in_place=in_place)


def _free(device: torch.device) -> int:
    """Bytes of free memory on a device."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    import psutil  # the library does without it

    available: int = psutil.virtual_memory().available
    return available
