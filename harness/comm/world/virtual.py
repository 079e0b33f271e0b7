"""All ranks in this process: a virtual cluster of any size on one machine, under a simulated clock.

Collectives run one after another, each on all of its ranks together. Their work is measured as it runs. When
the step is over, the clock computes when the work would have run with overlap and on the given network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, count
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.interface import Observation
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.graph import GraphClock
from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local
from gradwire.harness.comm.world.captured_together import CapturedTogether, Driven, TurnMarks
from gradwire.harness.comm.world.gradient_store import make_store
from gradwire.harness.comm.world.interface import Collective, CollectivePlace, RankProgram, Result, StepEnd
from gradwire.harness.comm.world.process_captured import CapturedBuckets
from gradwire.harness.comm.world.started import StartedCollectives, StartedTogether, VirtualStarted
from gradwire.harness.comm.world.virtual_step import Shared, VirtualStep, drive
from gradwire.harness.runtime.memory import collector_paused
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.measure.work_clock import WorkClock, make_work_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.window import StepWindow, load_window, window_tensors
from gradwire.harness.timing.trace.log import MeasuredNotes, StepNotes, TaskLog, shifted
from gradwire.harness.timing.trace.observations import observations
from gradwire.harness.timing.trace.step import RankTrace, StepTrace, TaskTrace, Work, spans, step_end

CLOCK = "clock"
"""The part of a checkpoint that holds what is in flight on the simulated clock."""


class _Logged(NamedTuple):
    """A collective that one rank has run: the rank's number for it, the moment of the rank's computation at
    which it could begin, its log, and what converts the log's timestamps."""

    number: int
    ready: int
    log: TaskLog
    seconds: Callable[[Any], float]


class _LocalRound(NamedTuple):
    """The means by which the ranks of one collective communicate: their logs, counted bytes, message buffers
    and mailboxes, and the clock of the logs, also of the moments between two ranks' turns."""

    logs: Mapping[int, TaskLog]
    sent: Mapping[int, Traffic]
    arenas: Mapping[int, Arena]
    mailboxes: Mailboxes
    mark: Callable[[], Any]
    turn: Callable[[], Any]


class VirtualWorld:
    """`size` ranks with their own counters and timelines; `clock` converts their recorded work to simulated
    times.

    Without a clock, times are as measured here, and buckets and hops do not wait for one another. `inputs`
    selects where the inputs of collectives are stored: see `make_store`. Work is timed by `work_clock`, by
    default that of the device. `captured` keeps captured rounds, each of a bucket on all ranks.
    """

    def __init__(
        self,
        size: int,
        fabric: Fabric,
        device: torch.device,
        *,
        clock: SimulatedClock | None = None,
        spans: bool = True,
        debug: bool = False,
        inputs: str = "auto",
        work_clock: WorkClock | None = None,
        captured: CapturedRounds | None = None,
    ) -> None:
        self.size, self.ranks, self.device = size, tuple(range(size)), device
        self.traffic = {rank: Traffic(fabric.node(rank, size)) for rank in self.ranks}
        self._counted = {rank: own.part() for rank, own in self.traffic.items()}
        self.recorders = {rank: Recorder(enabled=spans) for rank in self.ranks}
        self.clock = clock
        self._work_clock = work_clock or make_work_clock(device)
        self._window = None if clock is None else StepWindow(clock)
        self._fabric, self._debug = fabric, debug
        self._numbers = count()
        self._arenas = {rank: Arena(device) for rank in self.ranks}
        self._captured = None
        if captured is not None:
            self._captured = CapturedTogether(captured, device, self._work_clock.seconds)
        self._store = make_store(inputs, device, in_place=captured is not None)
        self._now_s = 0.0
        self._steps: dict[int, VirtualStep] = {}  # that each rank is in
        self._started = StartedCollectives()
        self.measured: StepTrace = {}
        """The last step as it was measured here, before the clock."""
        self.timed: StepTrace = {}
        """The last step on the clock; without one, as it was measured."""

    def begin_step(self, now_s: float) -> None:
        """Sets the time at which the step begins, which the rates of the clock's links may depend on; 0 by
        default."""
        self._now_s = now_s

    @collector_paused()
    def run_step(self, step: int, programs: Mapping[int, RankProgram[Result]]) -> StepEnd[Result]:
        self._store.clear()
        clock, steps = self._work_clock, self._steps
        clock.begin()
        shared = Shared(step, self._store, clock.mark, steps, self._started)
        steps.update({rank: VirtualStep(rank, shared) for rank in self.ranks})
        logged: dict[int, list[_Logged]] = {rank: [] for rank in self.ranks}
        results = drive(programs, steps, partial(self._run_together, logged))
        for together in chain(shared.collectives, *shared.transfers.values()):
            if not together.has_run:  # it is awaited in a later step, or never
                self._run_together(logged, together)
        clock.settle()
        self.measured = {rank: self._trace(steps[rank], own) for rank, own in logged.items()}
        self._time(step)
        return StepEnd(results, step_end(self.timed))

    def _run_together(self, logged: Mapping[int, list[_Logged]], together: StartedTogether) -> None:
        """Runs a collective on all its ranks, and logs each rank's work under the rank's own number for it.
        Raises RuntimeError naming the ranks that have not started it."""
        together.check_started()
        collectives = {rank: together.collective(rank, self._store) for rank in together.ranks}
        driven = None
        if self._captured is not None:
            capture = partial(self._drive_captured, together)
            driven = self._captured.launched(together.bucket, collectives, together.inputs, capture)
        if driven is None:
            logs = _logs(together, self._work_clock.mark)
            driven = Driven(self._work_clock.seconds, logs, results=self._run(collectives, logs))
        for rank, sent in driven.sent.items():
            self._counted[rank].include(sent)
        found = driven.results
        together.results = dict.fromkeys(self.ranks, found[0]) if together.has_one_result else dict(found)
        together.has_run = True
        for rank, own in together.inputs.items():
            logged[rank].append(_Logged(own.number, own.ready, driven.logs[rank], driven.seconds))

    def _drive_captured(
        self, together: StartedTogether, collectives: Mapping[int, Collective[Any]], clock: GraphClock
    ) -> Driven:
        """Runs a round that is being captured, with message buffers of its own; `clock` is its graph's."""
        marks = TurnMarks(clock)
        logs = _logs(together, marks.mark)
        sent = {rank: Traffic(self.traffic[rank].node) for rank in collectives}
        arenas = {rank: Arena(self.device) for rank in collectives}
        results = self._drive(
            collectives, _LocalRound(logs, sent, arenas, Mailboxes(), marks.mark, marks.turn)
        )
        return Driven(clock.seconds, logs, sent, results, marks.count)

    def _trace(self, rank_step: VirtualStep, logged: Sequence[_Logged]) -> RankTrace:
        """A rank's step as it was measured: its computation as if waiting took no time, and each collective
        from its own begin on."""
        moments = rank_step.computed.moments(self._work_clock.seconds)
        tasks = []
        for _, ready, log, seconds in sorted(logged, key=attrgetter("number")):
            operations = log.resolve_operations(seconds)
            begun = operations[0]
            assert isinstance(begun, Work)
            task = TaskTrace(log.bucket, log.coordinates, moments[ready], operations, log.in_turn)
            tasks.append(shifted(task, -begun.start)._replace(ready=task.ready))
        return RankTrace(rank_step.lane.resolve(moments.__getitem__), tuple(tasks), moments[-1])

    def _time(self, step: int) -> None:
        """Puts the measured step on the simulated clock; each rank's recorder gets the resulting spans."""
        self.timed = self.measured
        if self._window is not None:
            self.timed = self._window.step(step, self.measured, self._now_s)
        for rank, own in self.timed.items():
            if self.recorders[rank].enabled:
                for span in spans(own):
                    self.recorders[rank].add(span.kind, span.start, span.end, span.bytes)

    def resumed(self, rank: int, place: CollectivePlace, result: Result) -> VirtualStarted[Result]:
        together = StartedTogether("", (rank,), 0, 0, results={rank: result}, has_run=True)
        started: VirtualStarted[Result] = VirtualStarted(rank, place, together, self._steps, self._store)
        self._started.add(started)
        return started

    def windows(self) -> dict[int, tuple[float, float]]:
        end = step_end(self.timed)
        return {rank: own.window or (0.0, end) for rank, own in self.timed.items()}

    def settle(self) -> None:
        """Does nothing, because all collectives of a step have run when it is over."""

    def agree_on_timing(self) -> None:
        """Does nothing, because no step leaves work untimed."""

    def captured_buckets(self) -> CapturedBuckets | None:
        return None if self._captured is None else self._captured.report()

    def take_traffic(self) -> dict[int, Traffic]:
        taken, self._counted = self._counted, {rank: own.part() for rank, own in self.traffic.items()}
        return taken

    def observations(self) -> dict[int, tuple[Observation, ...]]:
        return {rank: observations(trace) for rank, trace in self.timed.items()}

    def take_notes(self) -> dict[int, StepNotes]:
        return {rank: MeasuredNotes(trace) for rank, trace in self.measured.items()}

    @collector_paused()
    def run(self, collectives: Mapping[int, Collective[Result]]) -> dict[int, Result]:
        return self._run(collectives, {})

    def _run(
        self, collectives: Mapping[int, Collective[Result]], logs: Mapping[int, TaskLog]
    ) -> dict[int, Result]:
        for rank in collectives:
            self._arenas[rank].begin_round()
        mailboxes, mark = Mailboxes(self._debug), self._work_clock.mark
        return self._drive(collectives, _LocalRound(logs, self._counted, self._arenas, mailboxes, mark, mark))

    def _drive(self, collectives: Mapping[int, Collective[Result]], local: _LocalRound) -> dict[int, Result]:
        """Runs a collective on all its ranks, which take turns; returns the results by rank."""
        number = next(self._numbers)
        futures: dict[int, Future[Result]] = {rank: Future() for rank in sorted(collectives)}
        tasks = []
        for rank, future in futures.items():
            log = local.logs.get(rank)
            channel = LocalChannel(rank, self.size, number, local.sent[rank], local.mailboxes, log)
            coroutine = collectives[rank](ScheduledCollectives(channel, self._fabric, local.arenas[rank]))
            tasks.append(CollectiveTask(coroutine, future.set_result, future.set_exception, log))
        run_local(tasks, local.mailboxes, local.mark, local.turn)
        return {rank: future.result(0) for rank, future in futures.items()}

    def forget(self) -> None:
        if self._captured is not None:
            self._captured.forget()
        self._arenas = {rank: Arena(self.device) for rank in self.ranks}
        self._store.clear()
        for rank in self.ranks:
            self.traffic[rank].clear()
            self.recorders[rank].drain()
        self._started.forget()
        if self._window is not None:
            self._window.forget()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        self._started.check_taken()
        return {} if self._window is None else {CLOCK: window_tensors(self._window)}

    def load_state_dict(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        if self._window is not None:
            load_window(self._window, read(CLOCK))

    def gather(self, rows: Mapping[int, Sequence[float]]) -> list[list[float]]:
        return [list(map(float, rows[rank])) for rank in self.ranks]

    def close(self) -> None:
        if self._captured is not None:
            self._captured.forget()
        self._arenas.clear()
        self._store.clear()


def _logs(together: StartedTogether, mark: Callable[[], Any]) -> dict[int, TaskLog]:
    """New logs of a collective by rank, whose timestamps `mark` takes. They do not say when it could begin,
    which is a moment of each rank's computation."""
    return {
        rank: TaskLog(
            mark,
            together.bucket,
            own.submission.coordinates,
            None,
            in_turn=own.submission.in_turn,
            urgency=own.submission.urgency,
        )
        for rank, own in together.inputs.items()
    }
