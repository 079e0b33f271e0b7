"""A world runs the same coroutines on every rank: one rank per process, or all in this one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from gradwire.codecs.interface import Observation
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.trace.log import StepNotes
from gradwire.harness.timing.trace.step import ORDINARY, StepTrace, Urgency

if TYPE_CHECKING:
    from gradwire.harness.comm.world.process_captured import CapturedBuckets
    from gradwire.harness.timing.simulate.clock import SimulatedClock

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Collective = Callable[[ScheduledCollectives], Coroutine[Any, None, Result]]
"""One rank's collective: a coroutine, given the rank's collectives."""


class CollectivePlace(NamedTuple):
    """A collective's identity: its 0-based `number` among those that its rank started in step `step`."""

    step: int
    number: int


@dataclass(frozen=True)
class Submission:
    """The terms on which a rank starts a collective.

    `buffers` names the message buffers, which collectives that are not in flight together may share.
    `coordinates` is the size of the synchronized data, for the trace. With `in_turn` the collective begins
    when the preceding ones have ended. The input is copied, because other ranks of the same process may
    overwrite it, unless it `is_own`: memory of this rank alone. `has_one_result` states that the result is
    the same on all ranks and not written to, so that a process keeps only one. With `keeps_input` the input
    can be read again until the next step. `urgency` applies to all messages of the collective: it goes into
    the trace, and a simulated clock serves lower levels first. Real transports ignore it.
    """

    buffers: str
    coordinates: int
    in_turn: bool = False
    is_own: bool = False
    has_one_result: bool = False
    keeps_input: bool = False
    urgency: Urgency = ORDINARY


class Started(Awaitable[Result_co], Protocol[Result_co]):
    """A started collective. Awaiting it, in this step or a later one, returns the result; it may be awaited
    repeatedly."""

    place: CollectivePlace

    def result(self) -> Result_co:
        """Waits for the result and returns it between two steps, without recording time. Used for
        checkpoints, which save the results of collectives that a later step awaits (`World.resumed`)."""
        ...

    def input(self) -> Tensor:
        """Returns the collective's input, until the next step; only available with `keeps_input`."""
        ...


class Computing(Protocol):
    """A stretch of a rank's computation, recorded in traces under the name `label`."""

    label: str

    def begin(self, label: str) -> None:
        """Records the following computation under another label."""
        ...

    def end(self) -> None:
        """Ends the computation here, before its block ends."""
        ...


class RankStep(Protocol):
    """One rank's part of a step: the calls by which a parallelism computes and communicates.

    A parallelism writes a step as one coroutine per rank. A process drives the coroutine of its own rank; if
    all ranks share a process, their coroutines take turns, each up to its next wait, in rank order. State
    that differs between ranks (gradients, codecs, shards) is looked up by `rank`. State that is the same on
    all ranks exists once per process and may only change in `replicated`.
    """

    @property
    def rank(self) -> int: ...

    def compute(self, label: str) -> AbstractContextManager[Computing]:
        """Records the block as the rank's computation; the block must not contain `await`."""
        ...

    def replicated(self, work: Callable[[], Result], group: int = 0) -> Result:
        """Does work on state that all ranks of a group share, and returns its result.

        The work is done once per process, and its time is counted for each of these ranks. `group` is the
        number of the group, if there are several (`Parallelism.group`). All ranks of a group must call this
        for the same work in the same order.
        """
        ...

    def start(
        self, make: Callable[[Tensor], Collective[Result]], x: Tensor, submission: Submission
    ) -> Started[Result]:
        """Starts `make(x)`, the rank's next collective, and returns at once.

        All ranks must start the same collectives in the same order. The rank must not write to `x` before its
        collective has ended.
        """
        ...

    def send(self, x: Tensor, to: int, *, is_own: bool = False, urgency: Urgency = ORDINARY) -> Started[None]:
        """Starts to send `x` to one other rank, under the phase `activations`; other ranks take no part.

        Messages from one rank to another arrive in the order of the receives, whatever else both ranks send
        or start. The rank must not write to `x` before it has been sent; `is_own` as in `Submission`.
        """
        ...

    def receive(self, out: Tensor, source: int) -> Started[Tensor]:
        """Starts to receive a message that another rank sends to this one into `out`, contiguous memory of
        this rank alone; `out` is also the result. May be started long before the message is sent."""
        ...

    def wait(self, started: Started[Result]) -> Result:
        """Waits for a collective that an earlier step has started, and returns its result. Unlike `await` it
        can be called in the middle of a computation, which continues afterwards."""
        ...

    def stopwatch(self) -> Callable[[], float] | None:
        """Returns a function that reads the seconds since this call, for collectives that run during the
        rank's computation; None if time does not advance while they run."""
        ...

    def barrier(self) -> Awaitable[None]:
        """States that the ranks are synchronized here, because each has waited for messages from all others.

        Nothing is sent, and a process does not wait; on a simulated clock the ranks continue at the same
        time.
        """
        ...


RankProgram = Callable[[RankStep], Coroutine[Any, Any, Result]]
"""One rank's program of a step."""


@dataclass(frozen=True)
class StepEnd(Generic[Result]):
    """The end of a step: the return value of each hosted rank's coroutine, and the length of the step on the
    simulated clock, in seconds; None if real time is measured."""

    results: Mapping[int, Result]
    simulated_s: float | None


class World(Protocol):
    """All ranks of a run; `ranks` lists those hosted by this process."""

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

    @property
    def clock(self) -> SimulatedClock | None:
        """The simulated clock; None if real time is measured."""
        ...

    @property
    def measured(self) -> StepTrace:
        """The last step's trace as measured here, before the simulated clock was applied; empty if real time
        is measured."""
        ...

    def begin_step(self, now_s: float) -> None:
        """Announces that the next step begins at second `now_s` of the training clock."""
        ...

    def run_step(self, step: int, programs: Mapping[int, RankProgram[Result]]) -> StepEnd[Result]:
        """Runs step number `step` and records it, given the program of each hosted rank.

        Raises the exception of a rank's program or of a collective.
        """
        ...

    def run(self, collectives: Mapping[int, Collective[Result]]) -> dict[int, Result]:
        """Runs one collective now, given for each hosted rank; returns the results by hosted rank.

        All ranks of all processes must call it in the same order. It records no spans, and its bytes only
        count under the phases that it names.
        """
        ...

    def gather(self, rows: Mapping[int, Sequence[float]]) -> list[list[float]]:
        """Returns each rank's float64 row, in rank order, the same on every rank; not counted as traffic."""
        ...

    def resumed(self, rank: int, place: CollectivePlace, result: Result) -> Started[Result]:
        """Returns a collective that a hosted rank had started before an interruption, for the rank to await
        as before; `result` is its saved result."""
        ...

    def windows(self) -> Mapping[int, tuple[float, float]]:
        """Returns the interval of the last step on the simulated clock for each hosted rank, in seconds of
        its spans; empty if real time is measured."""
        ...

    def settle(self) -> None:
        """Waits for all started collectives; their results stay available."""
        ...

    def agree_on_timing(self) -> None:
        """Has the ranks agree, after some steps, in which steps the work of captured rounds is timed. All
        processes call it between two steps, once the device has finished them."""
        ...

    def captured_buckets(self) -> CapturedBuckets | None:
        """Returns the record's figures of captured rounds; None where no round can be captured."""
        ...

    def take_traffic(self) -> Mapping[int, Traffic]:
        """Returns, per hosted rank, the byte counters of all collectives started since the last call.
        Collectives still in flight continue to count in them."""
        ...

    def observations(self) -> Mapping[int, Sequence[Observation]]:
        """Returns the timing observations of the last step, per hosted rank, once the device has finished it;
        empty if no traces are kept. Must be called before `take_notes`."""
        ...

    def take_notes(self) -> Mapping[int, StepNotes]:
        """Returns the logs of the last step for its trace, per hosted rank; nothing if no traces are kept."""
        ...

    def forget(self) -> None:
        """Discards everything recorded so far: message buffers, spans, notes and byte counts. Called after a
        warm-up and before the first step that counts."""
        ...

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Returns the parts of a checkpoint that hold the messages in flight on the simulated clock; empty if
        there are none.

        The parallelism saves the results of these collectives. Raises RuntimeError, one line, if it has not
        taken them by `result` before.
        """
        ...

    def load_state_dict(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        """Loads a result of `state_dict`; called after `forget`."""
        ...

    def close(self) -> None:
        """Release threads and process groups."""
        ...
