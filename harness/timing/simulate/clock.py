"""The simulated clock: converts measured steps to the steps that would have happened on a given network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gradwire.harness.network.links import Links, unlimited
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.timing.simulate.background import BackgroundJobs, BackgroundLoad
from gradwire.harness.timing.simulate.codec_times import CodecTimes, MeasuredTimes
from gradwire.harness.timing.simulate.compute import ComputeTimes
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import Before, StepPlan, compile_steps, lane_order
from gradwire.harness.timing.simulate.profile import LaneStretch, LaneTimes, WorkPiece, WorkTimes
from gradwire.harness.timing.simulate.retimed import retimed
from gradwire.harness.timing.trace.step import (
    Compute,
    Post,
    RankTrace,
    StepTrace,
    TaskTrace,
    Wait,
    Work,
    lane_shape,
)


@dataclass
class SimulatedClock:
    """Holds the links, the times of computation and codecs, and the background traffic.

    Up to `in_flight` collectives of a rank run at once. Without `overlap` none runs while the rank computes:
    collectives begin where it next waits, usually after the backward pass. With `multicast` the same bytes
    for several ranks leave a rank once. Results depend only on arguments; `StepWindow` keeps what is in
    flight between steps.
    """

    links: Links = field(default_factory=unlimited)
    compute: ComputeTimes = field(default_factory=ComputeTimes)
    codec_times: CodecTimes = field(default_factory=MeasuredTimes)
    background: BackgroundLoad = field(default_factory=BackgroundLoad)
    in_flight: int = 2
    overlap: bool = True
    multicast: bool = False
    seed: int = 0
    _plans: dict[object, StepPlan] = field(default_factory=dict, repr=False)

    def use(self, stretches: Sequence[LaneStretch], pieces: Sequence[WorkPiece]) -> None:
        """Uses calibrated seconds from here on instead of measured ones: for computation unless it is given,
        and for codec work unless its times are another device's or zero."""
        if stretches:
            self.compute = replace(self.compute, profile=LaneTimes(stretches))
        if pieces and isinstance(self.codec_times, MeasuredTimes):
            self.codec_times = WorkTimes(pieces)

    @property
    def num_unknown(self) -> int:
        """The number of stretches and pieces of work that keep their measured times because the profile has
        no matching entry."""
        lanes = 0 if self.compute.profile is None else self.compute.profile.unknown
        return lanes + (self.codec_times.unknown if isinstance(self.codec_times, WorkTimes) else 0)

    def step(self, number: int, measured: StepTrace, now_s: float = 0.0) -> StepTrace:
        """The step on this clock, from second 0 on: the same messages at simulated times. It begins at second
        `now_s` of the training, which matters if links change their rates."""
        return self.run([(number, measured)], now_s)[0]

    def run(
        self, steps: Sequence[tuple[int, StepTrace]], now_s: float = 0.0, before: Before | None = None
    ) -> list[StepTrace]:
        """Steps that follow one another, all ranks beginning the first at second 0, or where `before` says;
        from there on each rank goes to the next when its own computation has ended. Second 0 is second
        `now_s` of the training.

        ValueError for messages or lanes that do not fit together, RuntimeError if some rank waits for ever.
        """
        lanes = [
            {
                rank: own._replace(computation=self.compute.lane(own, number, rank))
                for rank, own in step.items()
            }
            for number, step in steps
        ]
        times = run(
            self._plan(lanes, before),
            self.links.since(now_s),
            list(self._seconds(lanes, before)),
            list(_ready(lanes, before)),
            self._background(steps[0][0], len(lanes[0])),
        )
        return retimed(lanes, times, self.overlap, begins_later=before is not None)

    def _seconds(self, steps: Sequence[StepTrace], before: Before | None) -> Iterator[float]:
        """The durations of all operations in the steps' plan, in order."""
        for rank in sorted(steps[0]):
            for task in (task for step in steps for task in step[rank].tasks):
                for place, operation in enumerate(task.operations):
                    if isinstance(operation, Work):
                        yield self.codec_times.seconds(operation, task.coordinates, place)
                    else:
                        yield 0.0
        for rank in sorted(steps[0]):
            if before is not None:
                yield before.begins[rank]
            for lane in (step[rank].computation for step in steps):
                yield 0.0  # the step begins
                for index in lane_order(lane, self.overlap):
                    computed = lane[index]
                    yield computed.seconds or 0.0 if isinstance(computed, Compute) else 0.0

    def _background(self, number: int, size: int) -> BackgroundJobs | None:
        jobs = self.background.jobs
        if not jobs or size < 2 or not self.links.rates:
            return None
        seed = derive_seed(self.seed, "step", number)
        return BackgroundJobs(jobs, size, self.background.num_bytes, self.links, seed)

    def _plan(self, steps: Sequence[StepTrace], before: Before | None) -> StepPlan:
        ended = None if before is None else [[len(own[rank]) for rank in sorted(own)] for own in before.ended]
        key = (
            *((rank, _structure(own)) for step in steps for rank, own in sorted(step.items())),
            repr(ended),
        )
        if key not in self._plans:
            if len(self._plans) > 16:  # sizes that change every step make a plan each
                self._plans.clear()
            self._plans[key] = compile_steps(
                steps, self.in_flight, multicast=self.multicast, overlap=self.overlap, before=before
            )
        return self._plans[key]


def _ready(steps: Sequence[StepTrace], before: Before | None) -> Iterator[float]:
    """The times at which the tasks of the steps' plan may begin, unless a lane starts them; for tasks that
    ended before, the time of their end."""
    for rank in sorted(steps[0]):
        for ended in () if before is None else before.ended:
            yield from ended[rank]
        yield from (0.0 for step in steps for _ in step[rank].tasks)


def _structure(own: RankTrace) -> tuple[object, ...]:
    """The part of a rank's step that the plan depends on."""
    return lane_shape(own.computation), tuple(map(_task_structure, own.tasks))


def _task_structure(task: TaskTrace) -> tuple[object, ...]:
    operations = tuple(
        (operation.phase, operation.sends, operation.receives, operation.copies, operation.urgency)
        if isinstance(operation, Post)
        else (operation.number if isinstance(operation, Wait) else -1)
        for operation in task.operations
    )
    return task.bucket, task.in_turn, operations
