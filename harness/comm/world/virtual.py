"""All ranks in this process: a virtual cluster of any size on one machine, under a simulated clock.

Buckets are synchronized one after another, all ranks of one together, so the memory needed is that of one
bucket times the ranks. Their work is measured as it is done. When the step is over, the clock says when it
would have been done, with overlap and on the given network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import torch

from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.collective.execute import Arena
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local
from gradwire.harness.comm.world.interface import Collective, Result
from gradwire.harness.runtime.memory import collector_paused
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.log import TaskLog
from gradwire.harness.timing.trace.notes import MeasuredNotes, StepNotes, shifted
from gradwire.harness.timing.trace.step import RankTrace, StepTrace, TaskTrace, Work, spans

TimedCollective = tuple[float, Collective[Any]]
"""(ready time in seconds of the step, what to run)"""


class VirtualWorld:
    """`size` ranks with counters and timelines of their own; `clock` turns what they did into time.

    Without a clock, work has the times measured here, and buckets and hops do not wait for one another.
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
    ) -> None:
        self.size, self.ranks, self.device = size, tuple(range(size)), device
        self.traffic = {rank: Traffic() for rank in self.ranks}
        self.recorders = {rank: Recorder(enabled=spans) for rank in self.ranks}
        self.clock = clock
        self._window = None if clock is None else StepWindow(clock)
        self._fabric, self._debug = fabric, debug
        self._numbers = count()
        self._arenas = {rank: Arena(device) for rank in self.ranks}
        self._tasks: dict[int, list[TaskTrace]] = {rank: [] for rank in self.ranks}
        self._now_s = 0.0
        self.measured: StepTrace = {}
        """The last step as it was measured here, before the clock."""
        self.timed: StepTrace = {}
        """The last step on the clock; without one, as it was measured."""

    def synchronize(self) -> None:
        """Waits for the device, so that wall-clock timestamps measure what was launched."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _timestamp(self) -> float:
        self.synchronize()
        return time.perf_counter()

    def begin_step(self, now_s: float) -> None:
        """Sets the step's second, on which the rates of the clock's links may depend; by default it is 0."""
        self._now_s = now_s

    @collector_paused()
    def run_bucket(
        self, collectives: Mapping[int, tuple[float, Collective[Result]]], coordinates: int
    ) -> dict[int, Result]:
        """Synchronizes a step's next bucket on all ranks; each gives (when its gradient was ready, what to
        run)."""
        bucket = len(self._tasks[0])
        logs = {
            rank: TaskLog(self._timestamp, bucket, coordinates, ready)
            for rank, (ready, _) in collectives.items()
        }
        results = self._run({rank: run for rank, (_, run) in collectives.items()}, logs)
        for rank, log in logs.items():
            task = log.resolve(lambda timestamp: timestamp)
            begun = task.operations[0]
            assert isinstance(begun, Work)
            self._tasks[rank].append(shifted(task, -begun.start)._replace(ready=task.ready))
        return results

    @collector_paused()
    def end_step(self, step: int, update_s: float = 0.0) -> StepTrace:
        """Ends the step: all buckets are synchronized and the update took `update_s`. Returns the step on the
        clock, from second 0 on; each rank's recorder gets its spans."""
        self.measured = {
            rank: RankTrace.synchronous([task.ready for task in tasks], tasks, update_s, 0.0)
            for rank, tasks in self._tasks.items()
        }
        self._tasks = {rank: [] for rank in self.ranks}
        self.timed = self.measured
        if self._window is not None:
            self.timed = self._window.step(step, self.measured, self._now_s)
        for rank, own in self.timed.items():
            if self.recorders[rank].enabled:
                for span in spans(own):
                    self.recorders[rank].add(span.kind, span.start, span.end, span.bytes)
        return self.timed

    def take_notes(self) -> dict[int, StepNotes]:
        return {rank: MeasuredNotes(trace) for rank, trace in self.measured.items()}

    def run_step(
        self, collectives: Mapping[int, Sequence[TimedCollective]], step: int = 0
    ) -> dict[int, list[Any]]:
        """Runs a step of nothing but collectives: the same number of them on each rank, in the same order."""
        results: dict[int, list[Any]] = {rank: [] for rank in self.ranks}
        for bucket in range(len(collectives[0])):
            given = {rank: own[bucket] for rank, own in collectives.items()}
            for rank, result in self.run_bucket(given, coordinates=1).items():
                results[rank].append(result)
        self.end_step(step)
        return results

    @collector_paused()
    def run(self, collectives: Mapping[int, Collective[Result]]) -> dict[int, Result]:
        return self._run(collectives, {})

    def _run(
        self, collectives: Mapping[int, Collective[Result]], logs: Mapping[int, TaskLog]
    ) -> dict[int, Result]:
        mailboxes, number = Mailboxes(self._debug), next(self._numbers)
        futures: dict[int, Future[Result]] = {rank: Future() for rank in self.ranks}
        tasks = []
        for rank in self.ranks:
            arena, log = self._arenas[rank], logs.get(rank)
            arena.begin_round()
            channel = LocalChannel(rank, self.size, number, self.traffic[rank], mailboxes, log)
            coroutine = collectives[rank](ScheduledCollectives(channel, self._fabric, arena))
            tasks.append(
                CollectiveTask(coroutine, futures[rank].set_result, futures[rank].set_exception, log)
            )
        run_local(tasks, mailboxes, self._timestamp)
        return {rank: future.result(0) for rank, future in futures.items()}

    def forget_buffers(self) -> None:
        self._arenas = {rank: Arena(self.device) for rank in self.ranks}

    def gather(self, rows: Mapping[int, Sequence[float]]) -> list[list[float]]:
        return [list(map(float, rows[rank])) for rank in self.ranks]

    def close(self) -> None:
        self.forget_buffers()
