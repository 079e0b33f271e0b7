"""Steps of all ranks in one process: their coroutines take turns, each up to its next wait.

The computation of each rank is measured separately, without the work of other ranks in between. When no rank
can continue, the awaited collective runs on all ranks together. So only one collective runs at a time, which
limits memory to that of one collective, times the ranks, and the inputs of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gradwire.harness.comm.world.computed import Computed, ComputedStretch, Interval
from gradwire.harness.comm.world.gradient_store import GradientStore
from gradwire.harness.comm.world.interface import (
    Collective,
    CollectivePlace,
    RankProgram,
    Result,
    Started,
    Submission,
)
from gradwire.harness.comm.world.started import Input, StartedCollectives, StartedTogether, VirtualStarted
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.timing.trace.log import LaneLog
from gradwire.harness.timing.trace.step import ORDINARY, TRANSFERS, Urgency


class _CoroutineBarrier:
    """Awaiting this suspends the rank's coroutine until all ranks have reached the barrier."""

    def __await__(self) -> Generator[_CoroutineBarrier, None, None]:
        yield self


class _Computing:
    """A stretch of one rank's computation, which is added to those of the rank's step."""

    def __init__(self, label: str, step: VirtualStep) -> None:
        self.label, self._step = label, step
        self._has_ended = False
        self._since: Any = step.mark()
        self._replicated: tuple[Interval, ...] = ()

    def cut(self) -> None:
        if not self._has_ended:
            self._step.has_computed(
                self.label, ComputedStretch(Interval(self._since, self._step.mark()), self._replicated)
            )

    def add(self, work: Interval) -> None:
        """Adds computation that another rank did on this rank's behalf."""
        self._replicated += (work,)

    def proceed(self) -> None:
        """Continues the computation; the time since `cut` is not counted as the rank's computation."""
        if not self._has_ended:
            self._since, self._replicated = self._step.mark(), ()

    def begin(self, label: str) -> None:
        self.cut()
        self.proceed()
        self.label = label

    def end(self) -> None:
        self.cut()
        self._has_ended = True


class Shared:
    """The state that the ranks of step `number` share.

    Holds the collectives of all ranks, the transfers between pairs of ranks, and the results of replicated
    work. `steps` holds the current step of each rank, also after a later step has begun; `started` holds the
    collectives that may still be awaited then.
    """

    def __init__(
        self,
        number: int,
        store: GradientStore,
        mark: Callable[[], Any],
        steps: Mapping[int, VirtualStep],
        started: StartedCollectives,
    ) -> None:
        self.number, self.store, self.mark, self.steps = number, store, mark, steps
        self.started = started
        self.collectives: list[StartedTogether] = []
        self.transfers: dict[tuple[int, int], list[StartedTogether]] = {}
        self.replicated: dict[int, list[tuple[Any, Interval]]] = {}  # by group


class VirtualStep:
    """The step of one rank: its computation so far, and the collectives that it has started, with their
    times."""

    def __init__(self, rank: int, shared: Shared) -> None:
        self.rank, self._shared, self.mark = rank, shared, shared.mark
        self.lane = LaneLog()
        """The rank's computations, starts and waits, as if waiting took no time; its timestamps are moments
        of `computed`."""
        self.computed = Computed()
        self._computing: _Computing | None = None
        self._started, self._collectives = 0, 0
        self._replicated: Counter[int] = Counter()
        self._transfers: Counter[tuple[int, int]] = Counter()

    @contextmanager
    def compute(self, label: str) -> Iterator[_Computing]:
        self._computing = computing = _Computing(label, self)
        yield computing
        computing.end()
        self._computing = None

    def replicated(self, work: Callable[[], Result], group: int = 0) -> Result:
        known, number = self._shared.replicated.setdefault(group, []), self._replicated[group]
        self._replicated[group] += 1
        if number == len(known):
            start = self.mark()
            result = work()
            known.append((result, Interval(start, self.mark())))
            return result
        found, interval = known[number]
        if self._computing is not None:
            self._computing.add(interval)
        done: Result = found
        return done

    def start(
        self, make: Callable[[Tensor], Collective[Result]], x: Tensor, submission: Submission
    ) -> VirtualStarted[Result]:
        known, number = self._shared.collectives, self._collectives
        self._collectives += 1
        if number == len(known):
            ranks, name = sorted(self._shared.steps), f"collective {number}"
            known.append(StartedTogether(name, ranks, number, number, submission.has_one_result))
        return self._start(known[number], make, x, submission)

    def send(
        self, x: Tensor, to: int, *, is_own: bool = False, urgency: Urgency = ORDINARY
    ) -> VirtualStarted[None]:
        submission = Submission("", x.numel(), is_own=is_own, urgency=urgency)
        return self._start(
            self._transfer(self.rank, to), lambda x: lambda comm: comm.send(x, to), x, submission
        )

    def receive(self, out: Tensor, source: int) -> VirtualStarted[Tensor]:
        submission = Submission("", out.numel(), is_own=True)
        return self._start(
            self._transfer(source, self.rank),
            lambda out: lambda comm: comm.receive(out, source),
            out,
            submission,
        )

    def _transfer(self, source: int, destination: int) -> StartedTogether:
        """The next transfer from `source` to `destination` that this rank takes part in."""
        known, number = (
            self._shared.transfers.setdefault((source, destination), []),
            self._transfers[source, destination],
        )
        self._transfers[source, destination] += 1
        if number == len(known):
            name = f"message {number} from rank {source} to rank {destination}"
            known.append(StartedTogether(name, (source, destination), TRANSFERS))
        return known[number]

    def _start(
        self,
        together: StartedTogether,
        make: Callable[[Tensor], Collective[Result]],
        x: Tensor,
        submission: Submission,
    ) -> VirtualStarted[Result]:
        if self._computing is not None:
            self._computing.cut()
        shared, number = self._shared, self._started
        self._started += 1
        kept = x if submission.is_own else None
        together.inputs[self.rank] = Input(number, make, self.computed.now, kept, submission)
        self.lane.started(number, self.computed.now)
        if kept is None:
            shared.store.put(self.rank, number, x)
        if self._computing is not None:
            self._computing.proceed()  # keeping the input is not the rank's computation
        place = CollectivePlace(shared.number, number)
        started: VirtualStarted[Result] = VirtualStarted(
            self.rank, place, together, shared.steps, shared.store
        )
        shared.started.add(started)
        return started

    def wait(self, started: Started[Result]) -> Result:
        if self._computing is not None:
            self._computing.cut()
        result = started.result()  # it has run: an earlier step has started it
        self.has_waited(started.place)
        if self._computing is not None:
            self._computing.proceed()
        return result

    def stopwatch(self) -> None:
        return None

    def barrier(self) -> _CoroutineBarrier:
        self.lane.barrier(self.computed.now, self.computed.now)
        return _CoroutineBarrier()

    def has_computed(self, label: str, stretch: ComputedStretch) -> None:
        start = self.computed.now
        self.computed.add(stretch)
        self.lane.computed(label, start, self.computed.now)

    def has_waited(self, place: CollectivePlace) -> None:
        """Logs that the rank uses the result of a collective of this or an earlier step."""
        steps_back, now = self._shared.number - place.step, self.computed.now
        self.lane.awaited(place.number, now, now, steps_back)


Wait = VirtualStarted[Any] | _CoroutineBarrier
RunTogether = Callable[[StartedTogether], None]
"""Runs a collective that all ranks have started, and sets its results."""


def drive(
    programs: Mapping[int, RankProgram[Result]],
    steps: Mapping[int, VirtualStep],
    run_together: RunTogether,
) -> dict[int, Result]:
    """Runs the ranks' programs in turns, in rank order; returns their results.

    Raises the exception of a failed program, and RuntimeError on a deadlock.
    """
    running: dict[int, Coroutine[Any, Any, Result]] = {
        rank: program(steps[rank]) for rank, program in programs.items()
    }
    results: dict[int, Result] = {}
    waits: dict[int, Wait] = {}
    ready = list(running)
    try:
        while ready:
            for rank in ready:
                beat()
                try:
                    waits[rank] = running[rank].send(None)
                except StopIteration as end:
                    del running[rank]
                    results[rank] = end.value
            ready = _ready(waits, len(programs), run_together)
    finally:
        for program in running.values():
            program.close()
    return {rank: results[rank] for rank in programs}


def _ready(waits: dict[int, Wait], size: int, run_together: RunTogether) -> list[int]:
    """The ranks, of `size`, that can continue after the events that they wait for have happened; removes
    their waits."""
    awaited = {rank: wait.together for rank, wait in waits.items() if isinstance(wait, VirtualStarted)}
    if not awaited:
        if waits and len(waits) < size:
            raise RuntimeError(f"the step is stuck: ranks {sorted(waits)} wait for ranks that have ended")
        together = sorted(waits)
        waits.clear()
        return together
    first = min(awaited.values(), key=lambda each: (not each.has_run, bool(each.missing), each.order))
    if not first.has_run:
        run_together(first)
    ready = [rank for rank, together in awaited.items() if together is first]
    for rank in ready:
        del waits[rank]
    return sorted(ready)
