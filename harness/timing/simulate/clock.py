"""The simulated clock: turns a recorded step into the step as it would have gone on a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradwire.harness.network.links import Links, unlimited
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.timing.simulate.background import BackgroundJobs, BackgroundLoad
from gradwire.harness.timing.simulate.codec_times import CodecTimes, MeasuredTimes
from gradwire.harness.timing.simulate.compute import ComputeTimes
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import Plan, Times, compile_plan
from gradwire.harness.timing.trace.step import (
    Operation,
    Part,
    Post,
    RankTrace,
    StepTrace,
    TaskTrace,
    Wait,
    Work,
)


@dataclass
class SimulatedClock:
    """Links, the ranks' computation and codecs, and what else there is on the links.

    `in_flight` buckets of a rank are synchronized at once; without `overlap` none before the backward pass
    has ended. With `multicast` the same bytes for several ranks leave a rank once. The result of `step`
    depends on its arguments alone.
    """

    links: Links = field(default_factory=unlimited)
    compute: ComputeTimes = field(default_factory=ComputeTimes)
    codec_times: CodecTimes = field(default_factory=MeasuredTimes)
    background: BackgroundLoad = field(default_factory=BackgroundLoad)
    in_flight: int = 2
    overlap: bool = True
    multicast: bool = False
    seed: int = 0
    _plans: dict[object, Plan] = field(default_factory=dict, repr=False)

    def step(self, number: int, measured: StepTrace, now_s: float = 0.0) -> StepTrace:
        """The step as it goes on this clock, from second 0 on: its messages, with times of their own. It
        begins at second `now_s` of the training, which matters where links change their rates.

        All ranks start together and update when all have all gradients: what a rank may be ahead of the
        others at the end of a step is less than a hop.
        """
        ready, updates = {}, {}
        for rank, own in measured.items():
            sizes = [task.coordinates for task in own.tasks]
            ready[rank], updates[rank] = self.compute.times(own.ready, own.update_s, sizes, number, rank)
        tasks = {rank: own.tasks for rank, own in measured.items()}
        found = self._synchronize(number, tasks, ready, self.links.since(now_s))
        ends = [task.end for tasks in found.values() for task in tasks]
        synchronized = max([0.0, *ends, *(times[-1] for times in ready.values() if times)])
        return {
            rank: RankTrace.synchronous(ready[rank], found[rank], updates[rank], synchronized + updates[rank])
            for rank in measured
        }

    def _synchronize(
        self,
        number: int,
        tasks: dict[int, tuple[TaskTrace, ...]],
        ready: dict[int, list[float]],
        links: Links,
    ) -> dict[int, tuple[TaskTrace, ...]]:
        """The buckets' synchronization, each from when its gradient is `ready` on."""
        plan = self._plan(tasks)
        ordered = [task for rank in sorted(tasks) for task in tasks[rank]]
        begins = [at for rank in sorted(tasks) for at in self._begins(ready[rank])]
        work_s = [
            self.codec_times.seconds(operation, task.coordinates) if isinstance(operation, Work) else 0.0
            for task in ordered
            for operation in task.operations
        ]
        times = run(plan, links, work_s, begins, self._background(number, len(tasks)))
        retimed = iter(_retimed(ordered, begins, times))
        return {rank: tuple(next(retimed) for _ in tasks[rank]) for rank in sorted(tasks)}

    def _begins(self, ready: Sequence[float]) -> list[float]:
        return list(ready) if self.overlap else [*ready[-1:]] * len(ready)

    def _background(self, number: int, size: int) -> BackgroundJobs | None:
        jobs = self.background.jobs
        if not jobs or size < 2 or not self.links.rates:
            return None
        seed = derive_seed(self.seed, "step", number)
        return BackgroundJobs(jobs, size, self.background.num_bytes, self.links, seed)

    def _plan(self, tasks: dict[int, tuple[TaskTrace, ...]]) -> Plan:
        key = tuple((rank, tuple(map(_structure, own))) for rank, own in sorted(tasks.items()))
        if key not in self._plans:
            if len(self._plans) > 16:  # sizes that change every step make a plan each
                self._plans.clear()
            self._plans[key] = compile_plan(tasks, self.in_flight, multicast=self.multicast)
        return self._plans[key]


def _structure(task: TaskTrace) -> tuple[object, ...]:
    """What of a task a plan depends on."""
    operations = tuple(
        (operation.phase, operation.sends, operation.receives, operation.copies)
        if isinstance(operation, Post)
        else (operation.number if isinstance(operation, Wait) else -1)
        for operation in task.operations
    )
    return task.bucket, task.in_turn, operations


def _retimed(tasks: Sequence[TaskTrace], ready: Sequence[float], times: Times) -> list[TaskTrace]:
    found, index = [], 0
    for task, at in zip(tasks, ready, strict=True):
        operations: list[Operation] = []
        for operation in task.operations:
            start, end = times.start[index], times.end[index]
            index += 1
            if isinstance(operation, Work):
                operations.append(Work(start, end, _scaled(operation, end - start)))
            elif isinstance(operation, Post):
                operations.append(operation._replace(at=start))
            else:
                operations.append(operation._replace(start=start, end=end))
        found.append(task._replace(ready=at, operations=tuple(operations)))
    return found


def _scaled(work: Work, seconds: float) -> tuple[Part, ...]:
    """The parts of a piece of work that now takes `seconds`."""
    before = work.end - work.start
    factor = seconds / before if before > 0 else 0.0
    return tuple(part._replace(seconds=part.seconds * factor) for part in work.parts)
