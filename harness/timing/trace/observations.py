"""Observations derived from a step's trace, for clock-driven codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradwire.codecs.interface import Observation
from gradwire.harness.timing.trace.step import (
    MEASURE,
    Compute,
    Post,
    RankTrace,
    Start,
    TaskTrace,
    Wait,
    block_pass_of,
    stage_pass_of,
)

BACKWARD = "backward"
"""The phase of a micro-batch's backward pass through a stage, or of a block's backward pass."""

FORWARD = "forward"
"""The phase of a block's forward pass."""

STEP = "step"
"""The phase of a rank's whole lane in a step whose passes are by blocks."""

WHOLE_STEP = -1
"""The bucket number of `STEP` observations."""


def observations(trace: RankTrace) -> tuple[Observation, ...]:
    """The observations of one rank's step: for each bucket its computation and its phases, in order of time.

    If passes are by blocks, there are also each block's passes and the step as a whole.

    The step begins with the rank's first operation, whatever clock the trace uses.
    """
    found = [*_computation(trace), *_stage_passes(trace), *_block_passes(trace)]
    for task in trace.tasks:
        found += _phases(task)
    lane = trace.computation
    began = min((each.at if isinstance(each, Start) else each.start for each in lane), default=0.0)
    moved = (each._replace(start=each.start - began, end=each.end - began) for each in found)
    return tuple(sorted(moved, key=lambda each: (each.bucket, each.start, each.end)))


def _computation(trace: RankTrace) -> Iterator[Observation]:
    """The computation between one collective's possible begin and the next one's."""
    began: float | None = None
    for operation in trace.computation:
        if isinstance(operation, Compute) and began is None:
            began = operation.start
        elif isinstance(operation, Start):
            bucket = trace.tasks[operation.task].bucket
            yield Observation(bucket, "compute", 0, operation.at if began is None else began, operation.at)
            began = None


def _stage_passes(trace: RankTrace) -> Iterator[Observation]:
    """Each micro-batch's backward pass, which consists of several operations if collectives start in it."""
    for (direction, micro_batch), own in _passes(trace, stage_pass_of).items():
        if direction == BACKWARD:
            yield Observation(micro_batch, BACKWARD, 0, own[0].start, own[-1].end)


def _block_passes(trace: RankTrace) -> Iterator[Observation]:
    """Each operation of each block's passes, and the step's length if there are any."""
    found = _passes(trace, block_pass_of)
    for (direction, block), own in found.items():
        for operation in own:
            yield Observation(block, direction, 0, operation.start, operation.end)
    if found:
        lane = [each for each in trace.computation if not isinstance(each, Start)]
        yield Observation(WHOLE_STEP, STEP, 0, lane[0].start, lane[-1].end)


def _passes(
    trace: RankTrace, pass_of: Callable[[str], tuple[str, int] | None]
) -> dict[tuple[str, int], list[Compute]]:
    """The operations whose label is that of a pass, in order, grouped by pass."""
    parts: dict[tuple[str, int], list[Compute]] = {}
    for operation in trace.computation:
        if isinstance(operation, Compute) and (one := pass_of(operation.label)) is not None:
            parts.setdefault(one, []).append(operation)
    return parts


def _phases(task: TaskTrace) -> Iterator[Observation]:
    """Each phase's bytes and interval, from its first post until its last message had completed."""
    posts = [operation for operation in task.operations if isinstance(operation, Post)]
    ends = {operation.number: operation.end for operation in task.operations if isinstance(operation, Wait)}
    for phase in dict.fromkeys(post.phase for post in posts if post.phase != MEASURE):
        own = [number for number, post in enumerate(posts) if post.phase == phase]
        sent = sum(num_bytes for number in own for _, num_bytes in posts[number].sends)
        end = max(ends.get(number, posts[number].at) for number in own)
        yield Observation(task.bucket, phase, sent, posts[own[0]].at, end)
