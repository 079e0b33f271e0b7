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
    from gradwire.harness.timing.simulate.clock import SimulatedClock

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Collective = Callable[[ScheduledCollectives], Coroutine[Any, None, Result]]
"""One rank's collective: a coroutine, given the rank's collectives."""


class CollectivePlace(NamedTuple):
    """A collective's identity: the `number`-th, from 0 on, that its rank started in step `step`."""

    step: int
    number: int


@dataclass(frozen=True)
class Submission:
    """The terms on which a rank starts a collective.

    `buffers` names the message buffers, which collectives that are not in flight together may share.
    `coordinates` is the size of what is synchronized, for the trace. With `in_turn` it begins when those
    before it have ended. Other ranks of the same process may write to the input, so that a copy is kept,
    unless it `is_own`: memory of this rank alone. `has_one_result`: the result is the same on all ranks and
    not written to, so that a process keeps one of them. With `keeps_input` the input can be read again until
    the next step. `urgency` is that of all its messages: it goes into the trace, and on a simulated clock
    those of a lower level go first. Real transports carry messages as they come.
    """

    buffers: str
    coordinates: int
    in_turn: bool = False
    is_own: bool = False
    has_one_result: bool = False
    keeps_input: bool = False
    urgency: Urgency = ORDINARY


class Started(Awaitable[Result_co], Protocol[Result_co]):
    """A collective that has been started. Awaiting it, in this step or a later one, gives the result, as
    often as it is awaited."""

    place: CollectivePlace

    def result(self) -> Result_co:
        """Returns the result between two steps, off the record: what a checkpoint keeps of a collective that
        a later step awaits (`World.resumed`). It waits for it without any clock noticing."""
        ...

    def input(self) -> Tensor:
        """Returns its input; only if it was started with `keeps_input`, until the next step."""
        ...


class Computing(Protocol):
    """A stretch of a rank's computation; what is computed from now on has the name `label` in traces."""

    label: str

    def begin(self, label: str) -> None:
        """Gives another label to what is computed from here on."""
        ...

    def end(self) -> None:
        """Ends it here, before its block does."""
        ...


class RankStep(Protocol):
    """One rank's part of a step: the calls by which a parallelism computes and communicates.

    A parallelism writes a step as one coroutine per rank. A process drives that of its own rank; where all
    ranks share a process their coroutines take turns, each up to its next wait, in the order of the ranks.
    What differs between ranks (gradients, codecs, shards) a coroutine finds by `rank`. What all ranks hold
    alike exists once per process and changes in `replicated` alone.
    """

    @property
    def rank(self) -> int: ...

    def compute(self, label: str) -> AbstractContextManager[Computing]:
        """The block is the rank's computation; it contains no `await`."""
        ...

    def replicated(self, work: Callable[[], Result], group: int = 0) -> Result:
        """Does work that is the same on all ranks of a group, on state that all of them hold alike, and
        returns its result. It is done once in each process, and takes all these ranks as long.

        `group` is the number of the group, if there are several (`Parallelism.group`): the ranks of each call
        this as often as one another, for the same work in the same order.
        """
        ...

    def start(
        self, make: Callable[[Tensor], Collective[Result]], x: Tensor, submission: Submission
    ) -> Started[Result]:
        """Starts `make(x)`, the rank's next collective, and returns at once. All ranks start the same
        collectives in the same order. The rank does not write to `x` before its collective has ended."""
        ...

    def send(self, x: Tensor, to: int, *, is_own: bool = False, urgency: Urgency = ORDINARY) -> Started[None]:
        """Starts to send `x` to one other rank, phase `activations`; other ranks take no part. Messages of a
        rank to another arrive in the order of its receives, whatever else both send or start. The rank does
        not write to `x` before it has been sent; `is_own` as in `Submission`."""
        ...

    def receive(self, out: Tensor, source: int) -> Started[Tensor]:
        """Starts to receive what a rank sends this one, into `out`, contiguous memory of this rank alone,
        which the result is. It may be started long before it is sent."""
        ...

    def wait(self, started: Started[Result]) -> Result:
        """Waits for a collective that an earlier step has started, and returns its result: what `await` does,
        in the middle of a computation, which continues after it."""
        ...

    def stopwatch(self) -> Callable[[], float] | None:
        """Returns a function that reads the seconds since now, for collectives that run during the rank's
        computation; None where time stands still while they run."""
        ...

    def barrier(self) -> Awaitable[None]:
        """States that ranks are together here, because each has waited for what all others have sent. Nothing
        is sent, and a process does not wait; on a simulated clock the ranks continue at the same time."""
        ...


RankProgram = Callable[[RankStep], Coroutine[Any, Any, Result]]
"""One rank's program of a step."""


@dataclass(frozen=True)
class StepEnd(Generic[Result]):
    """The end of a step: what each hosted rank's coroutine returned, and the length of the step on the
    simulated clock, in seconds; None if the wall clock counts."""

    results: Mapping[int, Result]
    simulated_s: float | None


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

    @property
    def clock(self) -> SimulatedClock | None:
        """The simulated clock; None where the wall clock counts."""
        ...

    @property
    def measured(self) -> StepTrace:
        """The last step as it was measured here, before the simulated clock; nothing where the wall clock
        counts."""
        ...

    def begin_step(self, now_s: float) -> None:
        """Announces that the next step begins at second `now_s` of the training clock."""
        ...

    def run_step(self, step: int, programs: Mapping[int, RankProgram[Result]]) -> StepEnd[Result]:
        """Runs step number `step`, on the record: given per hosted rank what that does.

        Raises what a rank's program or a collective raises.
        """
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

    def resumed(self, rank: int, place: CollectivePlace, result: Result) -> Started[Result]:
        """Returns a collective that a hosted rank had started before an interruption, to be awaited by the
        rank like the one it was; `result` is what it came to."""
        ...

    def windows(self) -> Mapping[int, tuple[float, float]]:
        """Returns from when to when the last step counts for each hosted rank on the simulated clock, in
        seconds of its spans; nothing where the wall clock counts."""
        ...

    def settle(self) -> None:
        """Waits for all started collectives; their results stay available."""
        ...

    def take_traffic(self) -> Mapping[int, Traffic]:
        """Returns the counters, per hosted rank, of all that was started since the last call. What of it is
        still in flight counts in them later."""
        ...

    def observations(self) -> Mapping[int, Sequence[Observation]]:
        """Returns what the clock says of the last step, per hosted rank, once the device is done with it;
        nothing if no traces are kept. Called before `take_notes`."""
        ...

    def take_notes(self) -> Mapping[int, StepNotes]:
        """Returns the logs of the last step for its trace, per hosted rank; nothing if no traces are kept."""
        ...

    def forget(self) -> None:
        """Forgets what was done so far: message buffers, spans, notes and bytes sent. Called after a warm-up
        and before the first step that counts."""
        ...

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Returns the parts of a checkpoint that hold what is in flight on the simulated clock, none where
        nothing is; what it has come to is the parallelism's to keep. Raises RuntimeError, one line, if that
        has not taken it by `result` before."""
        ...

    def load_state_dict(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        """Loads what `state_dict` gave; called after `forget`."""
        ...

    def close(self) -> None:
        """Release threads and process groups."""
        ...
