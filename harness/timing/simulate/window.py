"""Consecutive steps of a run on the simulated clock, with the messages in flight from one to the next.

A checkpoint keeps this state as a tensor of JSON text, with every time to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.files.structured import parse_json
from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.plan import Before
from gradwire.harness.timing.trace import step
from gradwire.harness.timing.trace.log import moved, shifted
from gradwire.harness.timing.trace.step import (
    Await,
    Barrier,
    RankTrace,
    StepTrace,
    TaskTrace,
    step_end,
    task_spans,
)


@dataclass
class StepsInFlight:
    """The state of earlier steps that a step depends on, in seconds relative to the last time when nothing
    was in flight, which is second `now_s` of the training.

    `steps` holds the numbers and measured traces of the steps that are simulated together with the next one,
    and `before` the remains of still earlier ones. The last result had them end after `begun` seconds, and
    each rank's after `ended`.
    """

    now_s: float
    steps: list[tuple[int, StepTrace]] = field(default_factory=list)
    before: Before | None = None
    begun: float = 0.0
    ended: Mapping[int, float] = field(default_factory=dict)


@dataclass
class StepWindow:
    """The steps since nothing was last in flight, as `clock` simulates them.

    If a step leaves nothing in flight, all ranks begin the next one together, and it is simulated alone. A
    step whose collectives outlast it has a provisional length: the next step's messages may delay these
    collectives, and with them computation that had seemed to end earlier. The difference is added to the next
    step's length, so that the lengths of all steps add up to the time of all steps simulated together.

    Steps whose collectives have all ended before those of later steps begin are not simulated again.
    """

    clock: SimulatedClock
    in_flight: StepsInFlight | None = None
    """None if nothing is in flight."""

    def forget(self) -> None:
        """Drops everything in flight."""
        self.in_flight = None

    def step(self, number: int, measured: StepTrace, now_s: float = 0.0) -> StepTrace:
        """The step on the clock, from second 0 on, which is second `now_s` of the training. If it does not
        directly follow the step before, messages in flight are dropped."""
        window = self.in_flight
        if window is None or number != window.steps[-1][0] + 1:
            window = StepsInFlight(now_s)
        window.steps.append((number, measured))
        timed = self.clock.run(window.steps, window.now_s, window.before)
        end, last = step_end(timed[-1]), timed[-1]
        quiet = all(task.end <= end for task in _tasks(timed))
        if not quiet or window.ended:
            last = {rank: _cut(window, timed, rank, end if quiet else own.end) for rank, own in last.items()}
        self.in_flight = None
        if not quiet:
            window.begun, window.ended = end, {rank: own.end for rank, own in timed[-1].items()}
            if not self.clock.background.jobs:  # they do not begin anew where the ranks' messages do
                drop_ended(window, timed)
            self.in_flight = window
        return last


def _cut(window: StepsInFlight, timed: Sequence[StepTrace], rank: int, until: float) -> RankTrace:
    """The last of these steps of a rank, in seconds from its begin; it counts until `until`."""
    own, begun, begin = timed[-1][rank], window.begun, window.ended.get(rank, 0.0)
    return RankTrace(
        tuple(moved(operation, -begun) for operation in own.computation),
        tuple(shifted(task, -begun) for task in own.tasks),
        own.end - begun,
        (begin - begun, until - begun),
        tuple(
            span._replace(start=span.start - begun, end=span.end - begun)
            for span in _carried([step[rank] for step in timed[:-1]], begin)
        ),
    )


def _carried(before: Sequence[RankTrace], begin: float) -> Iterator[Span]:
    """The spans of earlier steps' collectives that end after `begin`, relative to it."""
    for task in (task for own in before for task in own.tasks if task.end > begin):
        yield from (span for span in task_spans(task) if span.end > begin)


def drop_ended(window: StepsInFlight, timed: Sequence[StepTrace]) -> None:
    """Drops the window's first steps that no later step can affect.

    Their collectives have ended before any of a later step begins, so that they have shared neither links nor
    threads with later ones. Only the times at which each rank finished, and at which collectives ended that
    later steps still await, are kept. No time changes, except where several tasks could begin at exactly the
    same time and their order is arbitrary.
    """
    count = _num_ended(timed)
    if not count:
        return
    ended = [] if window.before is None else list(window.before.ended)
    ended += [
        {rank: [task.end for task in own.tasks] for rank, own in step.items()} for step in timed[:count]
    ]
    window.steps = window.steps[count:]
    needed = max(
        one.steps_back - index
        for index, (_, step) in enumerate(window.steps)
        for own in step.values()
        for one in (*own.computation, NO_WAIT)
        if isinstance(one, Await)
    )
    begins = {rank: own.end for rank, own in timed[count - 1].items()}
    window.before = Before(begins, tuple(ended[-needed:]) if needed > 0 else ())


NO_WAIT = Await(0, 0.0, 0.0)


def _num_ended(timed: Sequence[StepTrace]) -> int:
    """The number of leading steps that have ended for good. The last step never has, because it determines
    when the step before ends."""
    begun = min(own.end for own in timed[-1].values())  # what is to come begins no earlier
    for count in range(len(timed) - 1, 0, -1):
        begun = min([begun, *(task.ready for task in _tasks(timed[count : count + 1]))])
        ended = max((task.end for task in _tasks(timed[:count])), default=0.0)
        if ended < begun and _have_met(timed[:count]):
            return count
    return 0


def _have_met(steps: Sequence[StepTrace]) -> bool:
    """True if all ranks have passed the same number of barriers in these steps, so that none still waits at a
    barrier that another rank reaches later."""
    counts = {
        sum(isinstance(one, Barrier) for step in steps for one in step[rank].computation) for rank in steps[0]
    }
    return len(counts) == 1


def _tasks(steps: Sequence[StepTrace]) -> Iterator[TaskTrace]:
    return (task for step in steps for own in step.values() for task in own.tasks)


STATE = "in_flight"
WHERE, REMEDY = "a checkpoint's clock", "resume=never starts over"

_NAMED = {
    kind.__name__: kind
    for kind in (
        *(step.RankTrace, step.Compute, step.Start, step.Await, step.Barrier),
        *(step.TaskTrace, step.Work, step.Part, step.Post, step.Urgency, step.Wait),
        Before,
    )
}


def window_tensors(window: StepWindow) -> dict[str, Tensor]:
    """The state from which an interrupted run resumes; empty if nothing is in flight."""
    found = window.in_flight
    if found is None:
        return {}
    plain = [found.now_s, found.steps, found.before, found.begun, found.ended]
    return {STATE: torch.frombuffer(bytearray(json.dumps(_plain(plain)).encode()), dtype=torch.uint8)}


def load_window(window: StepWindow, saved: Mapping[str, Tensor]) -> None:
    """Restores `window` from a result of `window_tensors`."""
    window.in_flight = None
    if STATE in saved:
        now_s, steps, before, begun, ended = _made(
            parse_json(bytes(saved[STATE].cpu().numpy()), WHERE, remedy=REMEDY, expected=list)
        )
        window.in_flight = StepsInFlight(now_s, list(steps), before, begun, ended)


def _plain(value: Any) -> Any:
    """Converts to JSON lists that begin with the kind of their content: a named tuple, a mapping, or another
    sequence."""
    if type(value).__name__ in _NAMED:
        return [type(value).__name__, *map(_plain, value)]
    if isinstance(value, Mapping):
        return ["mapping", *([key, _plain(each)] for key, each in value.items())]
    return ["sequence", *map(_plain, value)] if isinstance(value, list | tuple) else value


def _made(value: Any) -> Any:
    """The inverse of `_plain`; every sequence becomes a tuple."""
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind == "mapping":
        return {key: _made(each) for key, each in parts}
    made = tuple(map(_made, parts))
    return made if kind == "sequence" else _NAMED[kind](*made)
