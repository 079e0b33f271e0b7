"""Steps to simulate: all-reduces over real schedules, and tasks written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from reference_engine import run_reference

from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.topology.schedule import Step
from gradwire.harness.network.links import Links
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import POST, WAIT, StepPlan, compile_plan
from gradwire.harness.timing.trace.step import Message, Operation, Post, TaskTrace, Wait, Work

Tasks = dict[int, tuple[TaskTrace, ...]]
Number = Fraction | float

SOME_WORK = Work(0.0, 0.0)
WHOLE = Fraction(1)


def task(*operations: Operation, bucket: int = 0, in_turn: bool = False) -> TaskTrace:
    return TaskTrace(bucket, 1000, 0.0, operations, in_turn)


def post(
    sends: Sequence[Message] = (),
    receives: Sequence[Message] = (),
    phase: str = "metadata",
    *,
    copies: bool = False,
) -> Post:
    return Post(0.0, phase, tuple(sends), tuple(receives), copies)


def wait(number: int = 0) -> Wait:
    return Wait(number, 0.0, 0.0)


def sending(target: int, num_bytes: int, bucket: int = 0) -> TaskTrace:
    return task(post(sends=[(target, num_bytes)]), wait(), bucket=bucket)


def receiving(source: int, num_bytes: int, bucket: int = 0) -> TaskTrace:
    return task(post(receives=[(source, num_bytes)]), wait(), bucket=bucket)


def all_reduce(topology: str, size: int, chunk: int, buckets: int = 1, work: bool = False) -> Tasks:
    """The tasks of every rank for `buckets` all-reduces of chunks of `chunk` bytes; with `work`, there is
    some before the first message and after each."""
    steps = make_schedule(topology, size).ranks
    return {
        rank: tuple(task(*_hops(steps[rank], chunk, work), bucket=bucket) for bucket in range(buckets))
        for rank in range(size)
    }


def _hops(steps: Sequence[Step], chunk: int, work: bool) -> list[Operation]:
    found: list[Operation] = [SOME_WORK] if work else []
    for number, step in enumerate(steps):
        sends = [(send.peer, len(send.chunks) * chunk) for send in step.sends]
        receives = [(receive.peer, len(receive.chunks) * chunk) for receive in step.receives]
        copies = len(sends) > 1 and {send.source for send in step.sends} == {"leaf"}
        posted = post(sends, receives, step.phase, copies=copies)
        found += [posted, wait(number)] + ([SOME_WORK] if work else [])
    return found


def ring_plan(size: int, num_bytes: int) -> StepPlan:
    """The plan of `topology=ring` for one bucket of `num_bytes` over `size` ranks, without codec work: 2(size
    − 1) hops of a chunk each, the chunks being of equal size, rounded up to whole bytes."""
    hops = 2 * (size - 1)
    posts = np.arange(size * hops)
    return StepPlan(
        kinds=np.tile(np.array([POST, WAIT]), len(posts)),
        values=np.repeat(posts, 2),
        first_operations=np.arange(size + 1) * (2 * hops),
        ranks=np.arange(size),
        first_tasks=np.arange(size + 1),
        thread_tasks=np.arange(size),
        num_posts=len(posts),
        routes=[(rank, ((rank + 1) % size,)) for rank in range(size)] if hops else [],
        route=np.repeat(np.arange(size), hops),
        sizes=np.full(len(posts), -(-num_bytes // size)),
        senders=posts,
        first_receivers=np.arange(len(posts) + 1),
        receivers=np.roll(posts, -hops),
    )


def operations_of(tasks: Tasks) -> list[Operation]:
    """All operations, in the order of the plan."""
    return [operation for rank in sorted(tasks) for own in tasks[rank] for operation in own.operations]


def ends(
    tasks: Tasks,
    links: Links,
    *,
    work_s: Number = 0,
    ready: Mapping[tuple[int, int], Number] | Number = 0,
    in_flight: int = 1,
    multicast: bool = False,
    background: BackgroundJobs | None = None,
    engine: Callable[..., Any] = run,
) -> dict[tuple[int, int], Any]:
    """The time at which each (rank, bucket) is synchronized; each unit of work takes `work_s`, a task may
    begin at `ready`, its own time or one for all."""
    keys = [(rank, own.bucket) for rank in sorted(tasks) for own in tasks[rank]]
    begins = [ready[key] if isinstance(ready, Mapping) else ready for key in keys]
    work = [work_s if isinstance(found, Work) else 0 for found in operations_of(tasks)]
    times = engine(compile_plan(tasks, in_flight, multicast=multicast), links, work, begins, background)
    found, first = {}, 0
    for key, own in zip(keys, (own for rank in sorted(tasks) for own in tasks[rank]), strict=True):
        first += len(own.operations)
        found[key] = times.end[first - 1] if own.operations else begins[keys.index(key)]
    return found


def exact_ends(tasks: Tasks, links: Links, **options: Any) -> dict[tuple[int, int], Any]:
    """`ends` by the reference engine: exact if rates and latencies are fractions."""
    return ends(tasks, links, engine=run_reference, **options)
