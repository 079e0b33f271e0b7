"""A pipeline's schedule as data: the ordered actions of each stage in a step.

A micro-batch goes forward through all stages and then backward through them. A pass of a stage needs the
message of the preceding stage in that direction. `check` proves a schedule without running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

Direction = Literal["forward", "backward"]


class Pass(NamedTuple):
    """One forward or backward pass of a micro-batch through a stage."""

    direction: Direction
    micro_batch: int


class Action(NamedTuple):
    """One operation of a stage: compute a pass, start to receive its input, or send its result."""

    kind: Literal["compute", "receive", "send"]
    of: Pass


Order = Callable[[int, int, int], Sequence[Pass]]
"""(stage, stages, micro-batches) → the stage's passes."""


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """GPipe: all forward passes before all backward ones."""
    forward: list[Pass] = [Pass("forward", batch) for batch in range(micro_batches)]
    return [*forward, *(Pass("backward", batch) for batch in range(micro_batches))]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """1F1B (PipeDream-Flush): a stage holds the activations of at most as many micro-batches as there are
    stages from itself to the last one."""
    ahead = min(stages - 1 - stage, micro_batches)
    passes = [Pass("forward", batch) for batch in range(ahead)]
    for batch in range(micro_batches):
        if ahead + batch < micro_batches:
            passes.append(Pass("forward", ahead + batch))
        passes.append(Pass("backward", batch))
    return passes


ORDERS: Mapping[str, Order] = {"1f1b": one_forward_one_backward, "gpipe": gpipe}
"""By `parallel.schedule`."""

Schedule = tuple[tuple[Action, ...], ...]
"""The actions of each stage."""


def make_schedule(order: Order, stages: int, micro_batches: int) -> Schedule:
    """The actions of all stages.

    The receive of a pass's input is started before the preceding pass, so that the input arrives while that
    pass is computed.
    """
    return tuple(tuple(_actions(order, stage, stages, micro_batches)) for stage in range(stages))


def _actions(order: Order, stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    passes = order(stage, stages, micro_batches)
    receives = [source(one, stage, stages) is not None for one in passes]
    if receives and receives[0]:
        yield Action("receive", passes[0])
    for index, one in enumerate(passes):
        if index + 1 < len(passes) and receives[index + 1]:
            yield Action("receive", passes[index + 1])
        yield Action("compute", one)
        if destination(one, stage, stages) is not None:
            yield Action("send", one)


def source(one: Pass, stage: int, stages: int) -> int | None:
    """The stage that sends `stage` the input of a pass; None if the pass needs no message."""
    return _within(stage - 1 if one.direction == "forward" else stage + 1, stages)


def destination(one: Pass, stage: int, stages: int) -> int | None:
    """The stage that a pass's result is sent to; None if no stage needs it."""
    return _within(stage + 1 if one.direction == "forward" else stage - 1, stages)


def _within(stage: int, stages: int) -> int | None:
    return stage if 0 <= stage < stages else None


def in_epilogue(micro_batch: int, stage: int, stages: int, micro_batches: int) -> bool:
    """True if a stage awaits the gradient of a micro-batch in the epilogue of its step, i.e. for one of its
    last stages − 1 − stage backward passes.

    In 1F1B these passes follow the last pair of a forward and a backward pass. In GPipe, where all backward
    passes follow all forward ones, they are those that remain when the last stage has done its own, if all
    passes take the same time.
    """
    return micro_batch >= micro_batches - (stages - 1 - stage)


def check(schedule: Schedule, micro_batches: int) -> tuple[int, ...]:
    """Returns the largest number of micro-batches whose activations each stage holds at a time.

    Raises ValueError unless every stage computes each micro-batch forward once and later backward once,
    neighbours receive the messages of a stage in the order sent, and no stage waits for ever.
    """
    for stage, actions in enumerate(schedule):
        _check_passes(stage, actions, micro_batches)
    lines = _Lines(len(schedule))
    done = [0] * len(schedule)
    while any(at < len(actions) for at, actions in zip(done, schedule, strict=True)):
        before = sum(done)
        for stage, actions in enumerate(schedule):
            while done[stage] < len(actions) and lines.can_go(stage, actions[done[stage]]):
                done[stage] += 1
        if sum(done) == before:
            waiting = [stage for stage, at in enumerate(done) if at < len(schedule[stage])]
            raise ValueError(f"the schedule is stuck: stages {waiting} wait for messages that no stage sends")
    lines.check_empty()
    return tuple(map(_most_held, schedule))


def _check_passes(stage: int, actions: Sequence[Action], micro_batches: int) -> None:
    computed = [one for kind, one in actions if kind == "compute"]
    for direction in ("forward", "backward"):
        found = sorted(one.micro_batch for one in computed if one.direction == direction)
        if found != list(range(micro_batches)):
            raise ValueError(f"stage {stage} computes the micro-batches {found} {direction}")
    for batch in range(micro_batches):
        if computed.index(Pass("forward", batch)) > computed.index(Pass("backward", batch)):
            raise ValueError(f"stage {stage} computes micro-batch {batch} backward before forward")


def _most_held(actions: Sequence[Action]) -> int:
    held = most = 0
    for kind, one in actions:
        if kind == "compute":
            held += 1 if one.direction == "forward" else -1
            most = max(most, held)
    return most


class _Lines:
    """The messages in transit between stages, and the receives that have been started."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._sent: dict[tuple[int, int], list[Pass]] = {}
        self._expected: dict[tuple[int, int], list[Pass]] = {}

    def can_go(self, stage: int, action: Action) -> bool:
        """Executes an action, or returns False if its input has not arrived. Raises ValueError if a message
        other than the expected one arrives."""
        kind, one = action
        if kind == "send":
            to = destination(one, stage, self._stages)
            if to is None:
                raise ValueError(f"stage {stage} sends the result of {one}, which no stage needs")
            self._sent.setdefault((stage, to), []).append(one)
            return True
        origin = source(one, stage, self._stages)
        if origin is None:
            return True
        line = origin, stage
        if kind == "receive":
            self._expected.setdefault(line, []).append(one)
            return True
        if not self._sent.get(line):
            return False
        came, expected = self._sent[line].pop(0), self._expected.get(line, [])[:1]
        if [came] != expected or came != one:
            raise ValueError(f"stage {stage} gets {came} where it needs {one}")
        del self._expected[line][0]
        return True

    def check_empty(self) -> None:
        """Raises ValueError if a message or receive is left over."""
        for lines in (self._sent, self._expected):
            for (origin, to), left in lines.items():
                if left:
                    raise ValueError(f"{left} is left on the way from stage {origin} to {to}")
