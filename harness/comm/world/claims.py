"""Collectives whose results have not been taken, so that a checkpoint would lose them."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from gradwire.harness.comm.world.interface import Place


class Claimable(Protocol):
    """A started collective; `is_claimed` once its result was taken, or where it has none."""

    place: Place

    @property
    def is_claimed(self) -> bool: ...


class Unclaimed:
    """The collectives that a step may still await."""

    def __init__(self) -> None:
        self._started: WeakSet[Claimable] = WeakSet()  # weak: dropped collectives need no await

    def add(self, started: Claimable) -> None:
        self._started.add(started)

    def forget(self) -> None:
        """Forgets all that were started so far."""
        self._started.clear()

    def check(self) -> None:
        """Raises RuntimeError for one whose result a parallelism has not put into its checkpoint."""
        for started in self._started:
            if not started.is_claimed:
                step, number = started.place
                raise RuntimeError(
                    f"collective {number} of step {step} is in flight, and a checkpoint would lose it: the "
                    "parallelism's state_dict() must keep its result() and place"
                )
