"""Started collectives, from their start until their results are taken: those of a process, and of ranks that
share one.

A program gets a `Started` for each: a `ProcessStarted`, whose communication thread sets the result, or a
`VirtualStarted`, one rank's end of what all ranks start together. `StartedCollectives` has those of a world.
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
    """A started collective; `is_taken` once its result was taken, or where it has none."""

    place: CollectivePlace

    @property
    def is_taken(self) -> bool: ...


class StartedCollectives:
    """The collectives that a world has started: those whose results are not taken, and, where threads run
    them on `device`, those in flight and their first failure."""

    def __init__(self, device: torch.device | None = None) -> None:
        on_gpu = device is not None and device.type == "cuda"
        self.devices: list[int | str | torch.device] | None = [device] if device and on_gpu else None
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        """The first failure of any of them: the others may then wait for a rank that is lost."""
        self._in_flight = 0
        self._known: WeakSet[Takeable] = WeakSet()  # weak: dropped collectives need no await

    def add(self, started: Takeable) -> None:
        """Notes one whose result is to be taken."""
        self._known.add(started)

    def begin(self) -> None:
        """Counts one more in flight, until its `set_result`."""
        with self.changed:
            self._in_flight += 1

    def end(self) -> None:
        """Counts one less; called with `changed` held."""
        self._in_flight -= 1
        self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Records a failure and wakes all waiters."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def settle(self) -> None:
        """Waits until none is in flight. Raises the first failure."""
        with self.changed:
            self.changed.wait_for(lambda: not self._in_flight or self.error is not None)
            if self.error is not None:
                raise self.error

    def forget(self) -> None:
        """Forgets the results that were not taken."""
        self._known.clear()

    def check_taken(self) -> None:
        """Raises RuntimeError for one whose result a parallelism has not put into its checkpoint."""
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
        """Waits for the result; on CUDA it is then under way, and the current stream waits for it.

        Returns the first failure of any collective. Raised here, it would hold the frames of all callers.
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
    """One rank's part of a collective, its `number`-th: the function that makes it, the time of its start,
    in seconds of the rank's step, its input, which is in the store if that is None, and its terms."""

    number: int
    make: Callable[[Tensor], Collective[Any]]
    ready: float
    own: Tensor | None
    submission: Submission


@dataclass
class StartedTogether:
    """A collective of a step among `ranks`, as far as they have started it. `name` says which it is, and
    `order` when it runs of those that can."""

    name: str
    ranks: Sequence[int]
    bucket: int
    order: int = 0
    has_one_result: bool = False
    inputs: dict[int, Input] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    """Those that their ranks have not taken yet."""
    has_run: bool = False

    @property
    def missing(self) -> list[int]:
        """The ranks that have not started it."""
        return [rank for rank in self.ranks if rank not in self.inputs]

    def check_started(self) -> None:
        """Raises RuntimeError unless all its ranks have started it."""
        if self.missing:
            raise RuntimeError(
                f"the step is stuck: ranks {sorted(self.inputs)} wait for {self.name}, which ranks "
                f"{self.missing} have not started"
            )

    def collective(self, rank: int, store: GradientStore) -> Collective[Any]:
        """The collective that a rank runs."""
        given = self.inputs[rank]
        return given.make(store.get(rank, given.number) if given.own is None else given.own)


class VirtualStarted(Started[Result]):
    """One rank's end of a collective of some step; `steps` has the step that each rank is in."""

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
