"""Message buffers that live as long as the bucket: one slot per message, reused in the next round.

A slot is not overwritten before the round has ended, so never before the receiver has its bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.interface import align


class Arena:
    """Hands out uint8 slots in a fixed order; the k-th slot of a round is the k-th of every round."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: list[Tensor] = []
        self._next = 0

    def begin_round(self) -> None:
        """Start handing out from the first slot again."""
        self._next = 0

    def take(self, num_bytes: int) -> Tensor:
        """The next slot: uint8, shape (num_bytes,), 16-byte aligned, contents undefined."""
        if self._next == len(self._slots):
            self._slots.append(torch.empty(0, dtype=torch.uint8, device=self._device))
        if self._slots[self._next].numel() < num_bytes:
            self._slots[self._next] = torch.empty(align(num_bytes), dtype=torch.uint8, device=self._device)
        slot = self._slots[self._next][:num_bytes]
        self._next += 1
        return slot

    @property
    def num_bytes(self) -> int:
        """Memory held by all slots."""
        return sum(slot.numel() for slot in self._slots)
