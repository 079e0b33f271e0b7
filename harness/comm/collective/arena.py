"""The memory that messages are made in and arrive in; it is reused from round to round."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.interface import align

MOST_PARTS = 4096
"""Number of parts of a slot that are cached; the cache is cleared where messages change their lengths every
round."""


class Slot:
    """Room for one message, or several one after another: uint8, 16-byte aligned, contents undefined."""

    def __init__(self, device: torch.device) -> None:
        self._room = torch.empty(0, dtype=torch.uint8, device=device)
        self._num_bytes = 0  # a field, because asking a tensor takes longer
        self._parts: dict[tuple[int, int], Tensor] = {}

    @classmethod
    def over(cls, room: Tensor) -> Slot:
        """A slot over existing memory, (bytes,) uint8."""
        slot = cls(room.device)
        slot._room, slot._num_bytes = room, room.numel()
        return slot

    def reserve(self, num_bytes: int) -> None:
        """Make room for `num_bytes` bytes."""
        if self._num_bytes < num_bytes:
            self._num_bytes = align(num_bytes)
            self._room = torch.empty(self._num_bytes, dtype=torch.uint8, device=self._room.device)
            self._parts.clear()

    def part(self, start: int, stop: int) -> Tensor:
        """The bytes from `start` to `stop`. Returns the same tensor object every time, because creating one
        takes longer than the work on a short message."""
        found = self._parts.get((start, stop))
        if found is None:
            if len(self._parts) == MOST_PARTS:
                self._parts.clear()
            found = self._parts[start, stop] = self._room[start:stop]
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the slot holds."""
        return self._num_bytes


class SlotPlace(NamedTuple):
    """The place of a message in a slot."""

    slot: Slot
    start: int
    stop: int

    @property
    def message(self) -> Tensor:
        """The bytes of the message."""
        return self.slot.part(self.start, self.stop)

    def part(self, start: int, stop: int) -> Tensor:
        """The bytes of the message from `start` to `stop`, relative to its beginning."""
        return self.slot.part(self.start + start, self.start + stop)


class Arena:
    """Hands out slots in a fixed order; the k-th slot of a round is the k-th of every round."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: list[Slot] = []
        self._next = 0

    def begin_round(self) -> None:
        """Start handing out from the first slot again."""
        self._next = 0

    def take(self, num_bytes: int) -> Slot:
        """The next slot, with room for `num_bytes` bytes."""
        if self._next == len(self._slots):
            self._slots.append(Slot(self._device))
        slot = self._slots[self._next]
        slot.reserve(num_bytes)
        self._next += 1
        return slot

    @property
    def num_bytes(self) -> int:
        """Memory held by all slots."""
        return sum(slot.num_bytes for slot in self._slots)
