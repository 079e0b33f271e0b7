"""A virtual step whose marks have times only when the step has ended, as events on a GPU's stream have."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from given_times import MarkedBy
from torch import Tensor

from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.computed import Computed, ComputedStretch, Interval
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.timing.measure.work_clock import HostClock, StreamClock, WorkClock, make_work_clock
from gradwire.harness.timing.trace.step import Compute, StepTrace

SIZE, TICK = 3, 1 / 1024


class LateClock:
    """Marks are numbers whose time is `TICK` times them, once the clock has settled."""

    def __init__(self) -> None:
        self._numbers = count()
        self._settled = self.waits = 0

    def begin(self) -> None:
        self._settled = next(self._numbers)

    def mark(self) -> int:
        return next(self._numbers)

    def settle(self) -> None:
        self._settled, self.waits = next(self._numbers), self.waits + 1

    def seconds(self, mark: int) -> float:
        assert mark < self._settled, "the host has not waited for this mark"
        return mark * TICK


def summed(x: Tensor) -> Collective[Tensor]:
    async def run(comm: ScheduledCollectives) -> Tensor:
        (total,) = await comm.reduce([(x, "sum")])
        return total

    return run


async def a_step(rank_step: RankStep) -> float:
    """Passes that start two collectives, work for all ranks together, and an update."""
    started = []
    with rank_step.compute("passes") as computing:
        rank_step.replicated(lambda: None)
        for numel in (5, 7):
            x = torch.full((numel,), float(rank_step.rank))
            started.append(rank_step.start(summed, x, Submission(buffers=str(numel), coordinates=x.numel())))
        computing.begin("more")
    totals = [float((await each)[0]) for each in started]
    await rank_step.barrier()
    with rank_step.compute("update"):
        rank_step.replicated(lambda: None)
    return sum(totals)


def traces(clock: WorkClock, steps: int = 2) -> list[StepTrace]:
    fabric, found = Fabric(partial(make_schedule, "ring")), []
    with closing(VirtualWorld(SIZE, fabric, torch.device("cpu"), work_clock=clock)) as world:
        for step in range(steps):
            ended = world.run_step(step, dict.fromkeys(world.ranks, a_step))
            assert set(ended.results.values()) == {2.0 * (0 + 1 + 2)}
            found.append(world.measured)
    return found


def test_times_that_are_known_late_are_those_known_at_once() -> None:
    """The clock that knows them at once ticks where the other one begins and settles, too."""

    class Ticking(MarkedBy):
        def __init__(self) -> None:
            numbers = count()
            super().__init__(lambda: next(numbers) * TICK)

        def begin(self) -> None:
            self.mark()

        settle = begin

    late = LateClock()
    assert traces(late) == traces(Ticking())
    assert late.waits == 2, "once a step"


def test_work_done_on_behalf_of_a_rank_counts_for_it() -> None:
    first, second, _ = (own.computation for own in traces(LateClock())[0].values())

    def lengths(lane: Any) -> dict[str, float]:
        return {one.label: one.end - one.start for one in lane if isinstance(one, Compute)}

    assert lengths(first)["update"] == 3 * TICK  # two marks around the work, and one at the end
    assert lengths(second)["update"] == 2 * TICK  # the work's tick, and its own
    assert second[0].start == 0.0


def test_moments_are_the_seconds_of_the_stretches_before() -> None:
    computed = Computed()
    computed.add(ComputedStretch(Interval(1.0, 1.5)))
    assert computed.now == 1
    computed.add(ComputedStretch(Interval(8.0, 8.25), (Interval(2.0, 4.0), Interval(5.0, 5.5))))
    assert computed.moments(float) == [0.0, 0.5, 0.5 + 0.25 + 2.0 + 0.5]


class Event:
    """An event on the one stream of a GPU, whose time is the number of events before it, in seconds."""

    recorded: list[Event] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.recorded.append(self)

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (self.recorded.index(end) - self.recorded.index(self))


def test_marks_on_a_gpu_are_events_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(Event, "recorded", [])
    clock = make_work_clock(torch.device("cuda"))
    assert isinstance(clock, StreamClock)
    found = traces(clock, steps=1)[0]
    assert waits == [torch.device("cuda")]
    assert [own.computation[0] for own in found.values()] == [
        Compute(0.0, 3.0, "passes"), Compute(0.0, 2.0, "passes"), Compute(0.0, 2.0, "passes")
    ]  # fmt: skip


def test_the_clock_of_a_cpu_is_that_of_its_thread() -> None:
    clock = make_work_clock(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    begun = clock.mark()
    while clock.mark() == begun:
        pass
    assert clock.seconds(clock.mark()) > clock.seconds(begun)
