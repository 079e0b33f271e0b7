"""Random steps for the simulated clock's engine: any links, messages, work, readiness and background jobs."""

from __future__ import annotations

import random
from typing import NamedTuple

from gradwire.harness.network.links import Change, LinkRoute, Links
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.plan import StepPlan, compile_plan, compile_steps
from gradwire.harness.timing.trace.step import (
    ORDINARY,
    Await,
    Barrier,
    Compute,
    LaneOperation,
    Message,
    Operation,
    Post,
    RankTrace,
    Start,
    StepTrace,
    TaskTrace,
    Urgency,
    Wait,
    Work,
)


class Case(NamedTuple):
    """The arguments of `engine.run`."""

    plan: StepPlan
    links: Links
    work_s: list[float]
    ready: list[float]
    background: BackgroundJobs | None


class Numbers:
    """Sizes and times: few different ones where `ties`, so that much happens at once, else any."""

    def __init__(self, drawn: random.Random, ties: bool) -> None:
        self._drawn, self._ties = drawn, ties
        self._urgent = drawn.random() < 0.5

    def seconds(self) -> float:
        drawn = self._drawn
        return drawn.choice((0.0, 0.0, 0.5, 1.0)) if self._ties else drawn.choice((0.0, drawn.random()))

    def rate(self) -> float:
        return self._drawn.choice((1.0, 2.0)) if self._ties else self._drawn.uniform(0.1, 3.0)

    def urgency(self) -> Urgency:
        """In half of the steps messages differ."""
        drawn = self._drawn
        if not self._urgent or drawn.random() < 0.4:
            return ORDINARY
        return Urgency(drawn.choice((0, 1, 1, 2)), drawn.random() < 0.5, drawn.choice((0, 1, 2, 3)))

    def bytes(self) -> int:
        drawn = self._drawn
        return drawn.choice((0, 1, 2, 4)) if self._ties else drawn.choice((0, drawn.randint(1, 10)))


def make_case(seed: int) -> Case:
    drawn = random.Random(seed)
    size, numbers = drawn.randint(1, 6), Numbers(drawn, ties=seed % 2 == 0)
    links = _links(drawn, numbers, size)
    in_flight, multicast = drawn.randint(1, 3), not links.serial
    if drawn.random() < 0.2:  # tasks alone, without lanes
        plan = compile_plan(_tasks(drawn, numbers, size), in_flight, multicast=multicast)
    else:
        tasks = [_tasks(drawn, numbers, size) for _ in range(drawn.choice((1, 1, 2, 3)))]
        lanes = _lanes(drawn, size, [len(step[0]) for step in tasks])
        steps = [
            {rank: RankTrace(lane[rank], own[rank], 0.0) for rank in range(size)}
            for lane, own in zip(lanes, tasks, strict=True)
        ]
        plan = compile_steps(steps, in_flight, multicast=multicast, overlap=drawn.random() < 0.7)
    background = None
    if size > 1 and drawn.random() < 0.5 and (plan.levels is None or not plan.levels.any()):
        num_bytes = size * 2.0 if seed % 2 == 0 else size * drawn.uniform(0.5, 5.0)
        background = BackgroundJobs(drawn.randint(1, 3), size, num_bytes, links, seed)
        if seed % 4 == 0:  # whole chunks, all jobs at once
            background.first = [background.chunk] * len(background.first)
    work_s = [numbers.seconds() for _ in plan.kinds]
    ready = [numbers.seconds() for _ in range(len(plan.first_operations) - 1)]
    return Case(plan, links, work_s, ready, background)


def make_steps(seed: int, count: int) -> tuple[SimulatedClock, list[StepTrace]]:
    """A clock, and steps that follow one another, whose tasks may last beyond them; each begins with enough
    computation for most of these to end."""
    drawn = random.Random(seed)
    size, numbers = drawn.randint(2, 4), Numbers(drawn, ties=seed % 2 == 0)
    links = _links(drawn, numbers, size)
    tasks = [_tasks(drawn, numbers, size) for _ in range(count)]
    pause = drawn.choice((5.0, 30.0, 60.0))

    def timed(operation: LaneOperation) -> LaneOperation:
        return operation._replace(seconds=numbers.seconds()) if isinstance(operation, Compute) else operation

    steps: list[StepTrace] = [
        {
            rank: RankTrace(
                (Compute(0.0, 0.0, "", pause), *map(timed, lane[rank])),
                own[rank],
                0.0,
            )
            for rank in range(size)
        }
        for lane, own in zip(_lanes(drawn, size, [len(step[0]) for step in tasks]), tasks, strict=True)
    ]
    clock = SimulatedClock(
        links, in_flight=drawn.randint(1, 3), overlap=drawn.random() < 0.7, multicast=not links.serial
    )
    return clock, steps


def _tasks(drawn: random.Random, numbers: Numbers, size: int) -> dict[int, tuple[TaskTrace, ...]]:
    """The tasks of all ranks for the same buckets."""
    buckets = [_exchanges(drawn, numbers, size) for _ in range(drawn.randint(1, 4))]
    in_turn = [drawn.random() < 0.2 for _ in buckets]
    return {
        rank: tuple(
            TaskTrace(index, 1, 0.0, tuple(_operations(drawn, numbers, rank, bucket)), in_turn[index])
            for index, bucket in enumerate(buckets)
        )
        for rank in range(size)
    }


def _lanes(
    drawn: random.Random, size: int, num_tasks: list[int]
) -> list[dict[int, tuple[LaneOperation, ...]]]:
    """The ranks' computation, step by step: each starts its tasks in order and awaits some that it has
    started, in this step or before; all meet after the same tasks."""
    found = []
    for step, count in enumerate(num_tasks):
        barriers = {task for task in range(count) if drawn.random() < 0.2}
        own: dict[int, tuple[LaneOperation, ...]] = {}
        for rank in range(size):
            lane: list[LaneOperation] = []
            for task in range(count):
                lane += [Compute(0.0, 0.0, "")] * drawn.randint(0, 2) + [Start(0.0, task)]
                while drawn.random() < 0.4:
                    back = drawn.randint(0, step + 1)
                    last = task + 1 if not back else num_tasks[step - back] if back <= step else 1
                    lane.append(Await(drawn.randrange(last), 0.0, 0.0, back))
                if task in barriers:
                    lane.append(Barrier(0.0, 0.0))
            own[rank] = tuple(lane)
        found.append(own)
    return found


Exchange = list[tuple[int, int, int]]
"""(source, destination, bytes) of messages that are posted together"""


def _exchanges(drawn: random.Random, numbers: Numbers, size: int) -> list[Exchange]:
    """The exchanges of one bucket, one after another: any messages, or copies from one rank."""
    if size == 1:
        return []
    return [
        _copies(drawn, numbers, size) if drawn.random() < 0.3 else _messages(drawn, numbers, size)
        for _ in range(drawn.randint(1, 6))
    ]


def _messages(drawn: random.Random, numbers: Numbers, size: int) -> Exchange:
    return [(*drawn.sample(range(size), 2), numbers.bytes()) for _ in range(drawn.randint(0, 2 * size))]


def _copies(drawn: random.Random, numbers: Numbers, size: int) -> Exchange:
    source, *targets = drawn.sample(range(size), drawn.randint(2, size))
    num_bytes = numbers.bytes()
    return [(source, target, num_bytes) for target in targets]


def _operations(drawn: random.Random, numbers: Numbers, rank: int, bucket: list[Exchange]) -> list[Operation]:
    """The operations of `rank` in the exchanges, posted in order and waited for at once, or some exchanges
    later."""
    found: list[Operation] = []
    posted = waited = 0
    for exchange in bucket:
        sends: list[Message] = [(target, size) for source, target, size in exchange if source == rank]
        receives: list[Message] = [(source, size) for source, target, size in exchange if target == rank]
        found += [Work(0.0, 0.0)] * drawn.randint(0, 2)
        if sends or receives or drawn.random() < 0.2:
            targets, sizes = {target for target, _ in sends}, {num_bytes for _, num_bytes in sends}
            copies = len(sends) == len(exchange) == len(targets) > 1 and len(sizes) == 1
            found.append(Post(0.0, "metadata", tuple(sends), tuple(receives), copies, numbers.urgency()))
            posted += 1
        while waited < posted and drawn.random() < 0.7:
            found.append(Wait(waited, 0.0, 0.0))
            waited += 1
    return found + [Wait(number, 0.0, 0.0) for number in range(waited, posted)]


def _links(drawn: random.Random, numbers: Numbers, size: int) -> Links:
    """Some links, and any of them for each pair of ranks; a serial one alone; none between some ranks."""
    rates = tuple(numbers.rate() for _ in range(drawn.randint(1, 6)))
    serial, none = drawn.random() < 0.3, drawn.random() < 0.2
    routes = {}
    for source in range(size):
        for target in range(size):
            count = 1 if serial else drawn.randint(1, min(3, len(rates)))
            if none and target != (source + 1) % size and drawn.random() < 0.3:
                count = 0
            routes[source, target] = LinkRoute(
                tuple(drawn.sample(range(len(rates)), count)), numbers.seconds()
            )
    moments = sorted({numbers.seconds() * 5 for _ in range(drawn.choice((0, 0, 1, 3)))})
    changes = tuple(Change(at_s, drawn.choice((0.5, 1.0, 2.0, drawn.random() + 0.1))) for at_s in moments)
    return Links(rates, lambda source, target: routes[source, target], serial, changes)
