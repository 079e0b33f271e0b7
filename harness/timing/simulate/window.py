"""Steps of a run on the simulated clock, one after another, with what is in flight from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.trace.notes import moved, shifted
from gradwire.harness.timing.trace.step import RankTrace, StepTrace, step_end, task_spans


@dataclass
class StepWindow:
    """The steps since nothing was last in flight, which `clock` simulates together.

    Where a step leaves nothing in flight, all ranks begin the next one together, and it is simulated by
    itself. A step whose collectives go on after it has a provisional length: the next step's messages may
    hold them up, and with them computation that had seemed to end earlier. What that changes is added to the
    next step's length, so that the lengths of all steps add up to the time of all simulated together.
    """

    clock: SimulatedClock
    _steps: list[tuple[int, StepTrace]] = field(default_factory=list)
    _now_s: float = 0.0
    _begun: float = 0.0  # where the step that comes next begins, in seconds of the window
    _ended: Mapping[int, float] = field(default_factory=dict)  # by rank, the last step

    def step(self, number: int, measured: StepTrace, now_s: float = 0.0) -> StepTrace:
        """The step on the clock, from second 0 on, which is second `now_s` of the training. A step that does
        not follow the one before forgets what that left in flight."""
        if self._steps and number != self._steps[-1][0] + 1:
            self._steps.clear()
        if not self._steps:
            self._now_s, self._begun, self._ended = now_s, 0.0, {}
        self._steps.append((number, measured))
        timed = self.clock.run(self._steps, self._now_s)
        end, last = step_end(timed[-1]), timed[-1]
        quiet = all(task.end <= end for step in timed for own in step.values() for task in own.tasks)
        if not quiet or len(timed) > 1:
            last = {rank: self._cut(timed, rank, end if quiet else timed[-1][rank].end) for rank in timed[-1]}
        self._begun, self._ended = end, {rank: own.end for rank, own in timed[-1].items()}
        if quiet:
            self._steps.clear()
        return last

    def _cut(self, timed: Sequence[StepTrace], rank: int, until: float) -> RankTrace:
        """The last of these steps of a rank, which counts `until` then, in seconds from its begin."""
        own, begin = timed[-1][rank], self._ended.get(rank, 0.0)
        return RankTrace(
            tuple(moved(operation, -self._begun) for operation in own.computation),
            tuple(shifted(task, -self._begun) for task in own.tasks),
            own.end - self._begun,
            (begin - self._begun, until - self._begun),
            tuple(self._carried([step[rank] for step in timed[:-1]], begin)),
        )

    def _carried(self, before: Sequence[RankTrace], begin: float) -> Iterator[Span]:
        for task in (task for own in before for task in own.tasks if task.end > begin):
            for span in task_spans(task):
                if span.end > begin:
                    yield span._replace(start=span.start - self._begun, end=span.end - self._begun)
