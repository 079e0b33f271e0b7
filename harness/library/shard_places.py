"""Memory at fixed addresses, for rounds that are captured: FSDP2 hands over other memory in each pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class _Memory:
    """`x`, and the moment from which the work that has used it has ended."""

    x: Tensor
    free: torch.cuda.Event | None = None


class Places:
    """One tensor for each use, size and type. Modules are gathered and scattered one after another, so those
    of equal size take turns with the same tensor, and the largest modules determine how much memory this is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._places: dict[tuple[str, int, torch.dtype], _Memory] = {}

    @contextlib.contextmanager
    def taken(self, use: str, numel: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """The tensor, (numel,), for the work of the block, at first all zeros. On a GPU the current stream
        waits for the work of the block that had it before, whose stream may be another one."""
        key = use, numel, dtype
        if key not in self._places:
            self._places[key] = _Memory(torch.zeros(numel, dtype=dtype, device=self._device))
        place = self._places[key]
        if place.free is not None:
            torch.cuda.current_stream(self._device).wait_event(place.free)
        yield place.x
        if self._device.type == "cuda":
            place.free = torch.cuda.current_stream(self._device).record_event()
