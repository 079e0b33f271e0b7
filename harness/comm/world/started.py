"""Collectives from their start until their results are taken, with one rank or all ranks in a process.

A program gets a `Started` for each collective: a `ProcessStarted`, whose communication thread sets the
result, or a `VirtualStarted`, one rank's handle of a collective that all ranks start together.
`StartedCollectives` holds those of a world.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from gradwire.harness.comm.world.gradient_store import GradientStore
from gradwire.harness.comm.world.interface import Collective, CollectivePlace, Result, Started, Submission

if TYPE_CHECKING:
    from gradwire.harness.comm.world.virtual_step import VirtualStep


class Takeable(Protocol):
    """A started collective; `is_taken` is true once its result was taken, or if it has none."""

    place: CollectivePlace

    @property
    def is_taken(self) -> bool: ...


class StartedCollectives:
    """A world's collectives whose results are not taken yet. Where threads run them on `device`, also counts
    those in flight and holds their first failure."""

    def __init__(self, device: torch.device | None = None) -> None:
        on_gpu = device is not None and device.type == "cuda"
        self.devices: list[int | str | torch.device] | None = [device] if device and on_gpu else None
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        """The first failure of any of them: the others may then wait for a rank that is lost."""
        self._in_flight = 0
        self._known: WeakSet[Takeable] = WeakSet()  # weak: dropped collectives need no await

    def add(self, started: Takeable) -> None:
        """Registers a collective whose result is to be taken."""
        self._known.add(started)

    def begin(self) -> None:
        """Counts one more collective in flight, until its `set_result`."""
        with self.changed:
            self._in_flight += 1

    def end(self) -> None:
        """Counts one collective less; called with `changed` held."""
        self._in_flight -= 1
        self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Records a failure and wakes all waiters."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def settle(self) -> None:
        """Waits until no collective is in flight. Raises the first failure."""
        with self.changed:
            self.changed.wait_for(lambda: not self._in_flight or self.error is not None)
            if self.error is not None:
                raise self.error

    def forget(self) -> None:
        """Drops the collectives whose results were not taken."""
        self._known.clear()

    def check_taken(self) -> None:
        """Raises RuntimeError for a collective whose result a parallelism has not saved in its checkpoint."""
        for started in self._known:
            if not started.is_taken:
                step, number = started.place
                raise RuntimeError(
                    f"collective {number} of step {step} is in flight, and a checkpoint would lose it: the "
                    "parallelism's state_dict() must keep its result() and place"
                )


class ProcessStarted(Started[Result]):
    """A collective on a communication thread, which sets its result or exception."""

    def __init__(
        self, place: CollectivePlace, collectives: StartedCollectives, kept: Tensor | None = None
    ) -> None:
        self.place, self._collectives, self._kept = place, collectives, kept
        self.future: torch.futures.Future[Any] = torch.futures.Future(devices=collectives.devices)
        """Gets the result, and nothing if the collective fails: `wait` says why."""
        self._done = self._was_taken = False

    @property
    def is_taken(self) -> bool:
        return self._was_taken or (self._done and self.future.value() is None)

    def input(self) -> Tensor:
        assert self._kept is not None, "started without keeps_input"
        return self._kept

    def set_result(self, result: Result) -> None:
        with self._collectives.changed:
            self.future.set_result(result)
            self._done = True
            self._collectives.end()

    def set_exception(self, error: BaseException) -> None:
        self._collectives.fail(error)

    def result(self) -> Result:
        error = self.wait()
        if error is not None:
            raise error
        return self._take()

    def _take(self) -> Result:
        self._was_taken = True
        found: Result = self.future.value()
        return found

    def wait(self) -> BaseException | None:
        """Waits for the result; on CUDA waits only until it has been launched, and makes the current stream
        wait for it.

        Returns the first failure of any collective. An exception raised here would keep the frames of all
        callers alive.
        """
        collectives = self._collectives
        with collectives.changed:
            collectives.changed.wait_for(lambda: self._done or collectives.error is not None)
            if collectives.error is not None:
                return collectives.error
        self.future.wait()
        return None

    def __await__(self) -> Generator[ProcessStarted[Any], None, Result]:
        yield self  # the driver of the program waits
        return self._take()


class Input(NamedTuple):
    """One rank's part of its `number`-th collective: the function that makes it, its start as a moment of the
    rank's computation, its input (in the store if None), and its terms."""

    number: int
    make: Callable[[Tensor], Collective[Any]]
    ready: int
    own: Tensor | None
    submission: Submission


@dataclass
class StartedTogether:
    """A collective of a step among `ranks`, with the parts of the ranks that have started it. `name`
    identifies it in messages; `order` sorts those that are ready to run."""

    name: str
    ranks: Sequence[int]
    bucket: int
    order: int = 0
    has_one_result: bool = False
    inputs: dict[int, Input] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    """Results by rank, until the rank takes its own."""
    has_run: bool = False

    @property
    def missing(self) -> list[int]:
        """The ranks that have not started the collective."""
        return [rank for rank in self.ranks if rank not in self.inputs]

    def check_started(self) -> None:
        """Raises RuntimeError unless all its ranks have started the collective."""
        if self.missing:
            raise RuntimeError(
                f"the step is stuck: ranks {sorted(self.inputs)} wait for {self.name}, which ranks "
                f"{self.missing} have not started"
            )

    def collective(self, rank: int, store: GradientStore) -> Collective[Any]:
        """The collective as a rank runs it, with its input."""
        given = self.inputs[rank]
        return given.make(store.get(rank, given.number) if given.own is None else given.own)


class VirtualStarted(Started[Result]):
    """One rank's handle of a collective; `steps` holds the current step of each rank."""

    def __init__(
        self,
        rank: int,
        place: CollectivePlace,
        together: StartedTogether,
        steps: Mapping[int, VirtualStep],
        store: GradientStore,
    ) -> None:
        self._rank, self.place, self.together = rank, place, together
        self._steps, self._store = steps, store
        self._taken: list[Result] = []

    @property
    def is_taken(self) -> bool:
        return bool(self._taken) or self.together.results.get(self._rank) is None

    def input(self) -> Tensor:
        given = self.together.inputs[self._rank]
        return self._store.get(self._rank, given.number) if given.own is None else given.own

    def result(self) -> Result:
        assert self.together.has_run, "result() inside a step"
        if not self._taken:
            self._taken.append(self.together.results.pop(self._rank))
        return self._taken[0]

    def __await__(self) -> Generator[VirtualStarted[Any], None, Result]:
        if not self._taken:
            yield self
        result = self.result()
        self._steps[self._rank].has_waited(self.place)
        return result
