"""A world runs the same coroutine on every rank: one rank per process, or all in this one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.trace.notes import StepNotes

Result = TypeVar("Result")
Collective = Callable[[ScheduledCollectives], Coroutine[Any, None, Result]]
"""What one rank runs: given its collectives, a coroutine."""


class World(Protocol):
    """All ranks of a run; `ranks` are those hosted by this process."""

    @property
    def size(self) -> int: ...

    @property
    def ranks(self) -> tuple[int, ...]: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def traffic(self) -> Mapping[int, Traffic]: ...

    @property
    def recorders(self) -> Mapping[int, Recorder]: ...

    def begin_step(self, now_s: float) -> None:
        """Announces that a step begins at second `now_s` of the training clock."""
        ...

    def run(self, collectives: Mapping[int, Collective[Result]]) -> dict[int, Result]:
        """Runs one collective now, given per hosted rank; returns its results per hosted rank.

        All ranks of all processes must call it in the same order. It leaves no spans, and its bytes count
        only in the phases it names.
        """
        ...

    def gather(self, rows: Mapping[int, Sequence[float]]) -> list[list[float]]:
        """Returns each rank's float64 row, in rank order, the same on every rank; not counted as traffic."""
        ...

    def take_notes(self) -> Mapping[int, StepNotes]:
        """Returns the logs of the last step for its trace, per hosted rank; nothing if no traces are kept."""
        ...

    def forget_buffers(self) -> None:
        """Frees the message buffers, for example those of a former bucket layout."""
        ...

    def close(self) -> None:
        """Release threads and process groups."""
        ...
