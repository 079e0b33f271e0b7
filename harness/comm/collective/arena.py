"""The memory that messages are made in and arrive in; it is reused from round to round."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwire.codecs.collectives import align

MOST_KEPT = 64
"""Number of objects that an arena keeps; they are discarded where messages change their lengths every
round."""

Kept = TypeVar("Kept")


class Slot:
    """Room for one message, or several one after another: uint8, 16-byte aligned, contents undefined."""

    def __init__(self, device: torch.device) -> None:
        self._room = torch.empty(0, dtype=torch.uint8, device=device)
        self.num_bytes = 0
        """Bytes of memory that the slot holds."""

    def reserve(self, num_bytes: int) -> bool:
        """Makes room for `num_bytes` bytes; True if the slot has moved in memory for that."""
        if self.num_bytes >= num_bytes:
            return False
        self.num_bytes = align(num_bytes)
        self._room = torch.empty(self.num_bytes, dtype=torch.uint8, device=self._room.device)
        return True

    def part(self, start: int, stop: int) -> Tensor:
        """The bytes from `start` to `stop`."""
        return self._room[start:stop]


class Arena:
    """Hands out slots in a fixed order; the k-th slot of a round is the k-th of every round.

    It also keeps what is made of views of its slots, because making a view takes the host longer than the
    work on a short message.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: list[Slot] = []
        self._next = 0
        self._kept: dict[Hashable, tuple[Any, int]] = {}

    def begin_round(self) -> None:
        """Start handing out from the first slot again."""
        self._next = 0

    def take(self, num_bytes: int) -> Slot:
        """The next slot, with room for `num_bytes` bytes."""
        if self._next == len(self._slots):
            self._slots.append(Slot(self._device))
        slot = self._slots[self._next]
        self.reserve(slot, num_bytes)
        self._next += 1
        return slot

    def reserve(self, slot: Slot, num_bytes: int) -> None:
        """Make room for `num_bytes` bytes in a slot that has been taken."""
        if slot.reserve(num_bytes):
            self._kept.clear()  # it may be views of memory that the slot has left

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The object that `make` makes, taking the next slots: made once for each `key` and first slot, until
        a slot moves."""
        place = key, self._next
        found = self._kept.get(place)
        if found is None:
            made = make()
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            found = self._kept[place] = made, self._next
        kept: Kept
        kept, self._next = found
        return kept

    @property
    def num_bytes(self) -> int:
        """Memory held by all slots."""
        return sum(slot.num_bytes for slot in self._slots)
