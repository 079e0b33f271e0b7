"""A step as data: each rank's computation and waits, and the operations of its collectives.

A rank has two parts. Its computation (lane) is a sequence of operations that may start collectives, await
their results and wait for other ranks. Its communication consists of the collectives themselves
(`TaskTrace`), whose threads take turns. Breakdown, overlap and bandwidth are computed from a trace's `spans`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradwire.harness.timing.measure.spans import Span

MEASURE = "measure"
"""The phase of messages that belong to the measurement: neither counted nor paced."""

BACKEND = "backend"
"""The phase of the communication library's own all-reduce, whose individual messages are unknown."""

CONTROL = "control"
"""The phase of messages that keep state equal on all ranks, such as buffers."""

ACTIVATIONS = "activations"
"""The phase of transfers between two ranks: activations and their gradients."""

WEIGHTS = "weights"
"""The phase of weights, or differences of weights, that ranks exchange after an update."""

PROBE = "probe"
"""The phase of messages that a codec only sends to measure how long they take."""

PHASES = ("metadata", "reduce_scatter", "all_gather")
"""The phases of every synchronization."""

COUNTED_PHASES = (*PHASES, WEIGHTS, ACTIVATIONS, CONTROL, PROBE)
"""All phases that bytes are counted under."""

NOT_ENCODED = (ACTIVATIONS, CONTROL, PROBE)
"""The phases that wire bits per coordinate exclude, because their messages are not encoded gradients or
weights."""

TRANSFERS = 1 << 20
"""The bucket number of all transfers between two ranks: whatever else both ranks do, the k-th transfer sent
from one to the other is the k-th received."""

Message = tuple[int, int]
"""(peer, bytes)"""


class Part(NamedTuple):
    """Seconds of work under one name (`encode`, `statistics`, …) for `share` of the bucket's coordinates."""

    label: str
    share: float
    seconds: float


class Work(NamedTuple):
    """Codec work between two messages, in seconds of the step; time that no part covers is Python's."""

    start: float
    end: float
    parts: tuple[Part, ...] = ()


class Urgency(NamedTuple):
    """The priority of messages: those of a lower `level` go first.

    On a link they get all the bandwidth that they can use, and the others share the rest. On a connection,
    which carries one message at a time, they are next; within a level, earlier posts go first or, if
    `newest_first`, later ones. A message in flight is preempted by a more urgent one on its connection after
    a multiple of `boundary` bytes; 0 means never.
    """

    level: int = 0
    newest_first: bool = False
    boundary: int = 0


ORDINARY = Urgency()


class Post(NamedTuple):
    """Messages passed to the transport together. `copies` is set if several peers are sent the same bytes and
    nothing else is sent; a network with multicast carries them as one message. `urgency` applies to the sent
    messages."""

    at: float
    phase: str
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    copies: bool = False
    urgency: Urgency = ORDINARY


class Wait(NamedTuple):
    """A wait for the `number`-th post of the task; `end` is the time when all its messages had completed."""

    number: int
    start: float
    end: float


Operation = Work | Post | Wait


class TaskTrace(NamedTuple):
    """One collective of one rank, usually the synchronization of a bucket. It could begin at `ready`, but
    with `in_turn` only after the collective before it had ended."""

    bucket: int
    coordinates: int
    ready: float
    operations: tuple[Operation, ...]
    in_turn: bool = False

    @property
    def end(self) -> float:
        """The time at which its last operation ended."""
        last = self.operations[-1] if self.operations else Post(self.ready, "", (), ())
        return last.at if isinstance(last, Post) else last.end


class Compute(NamedTuple):
    """Computation under one name.

    `seconds` is the time to its end since the lane last woke, i.e. since the step began or a wait ended; None
    means that `end` is to be used. A difference of two times would lose precision.
    """

    start: float
    end: float
    label: str
    seconds: float | None = None


class Start(NamedTuple):
    """The input of the rank's `task`-th collective is ready, so the collective may begin."""

    at: float
    task: int


class Await(NamedTuple):
    """The computation waits for the result of the rank's `task`-th collective of the step `steps_back` before
    this one (0: of this one)."""

    task: int
    start: float
    end: float
    steps_back: int = 0


class Barrier(NamedTuple):
    """The computation waits until all ranks have reached this point."""

    start: float
    end: float


LaneOperation = Compute | Start | Await | Barrier

UPDATE = "update"
"""The label of the optimizer's step."""


class RankTrace(NamedTuple):
    """One rank's step, in seconds from the step's start: its computation, in order, its collectives, and when
    the computation ended.

    If ranks begin their steps independently, `window` is the interval that counts as this step for the rank
    (None: from 0 to the end of the slowest rank), and `carried` holds the spans of earlier steps' collectives
    in it.
    """

    computation: tuple[LaneOperation, ...]
    tasks: tuple[TaskTrace, ...]
    end: float
    window: tuple[float, float] | None = None
    carried: tuple[Span, ...] = ()

    @classmethod
    def synchronous(
        cls, ready: Sequence[float], tasks: Sequence[TaskTrace], update_s: float, end: float
    ) -> RankTrace:
        """The step of synchronous data parallelism. Forward and backward passes run until `ready[b]`, when
        bucket b's gradient is ready and its collective may begin. When all ranks have all gradients, the
        update follows, which takes `update_s` and ends at `end`."""
        lane, at, updates = list[LaneOperation](), 0.0, end - update_s
        for bucket, there in enumerate(ready):
            lane += [Compute(at, there, passes_until(bucket)), Start(there, bucket)]
            at = there
        for number, task in enumerate(tasks):
            lane.append(Await(number, at, at := max(at, min(task.end, updates))))
        lane.append(Barrier(at, max(at, updates)))
        if update_s:
            lane.append(Compute(updates, end, UPDATE, update_s))
        return cls(tuple(lane), tuple(tasks), end)

    @property
    def is_synchronous(self) -> bool:
        """True if it has the form and the labels of a step made by `synchronous`."""
        same = RankTrace.synchronous(self.ready, self.tasks, self.update_s, self.end)
        return lane_shape(self.computation) == lane_shape(same.computation)

    @property
    def is_data_parallel(self) -> bool:
        """True if it is synchronous data parallelism, whatever its labels: it computes and starts all its
        collectives in order, waits for these and no others, then for all ranks, and then only computes."""
        waits = [index for index, one in enumerate(self.computation) if isinstance(one, Await | Barrier)]
        if not waits or not isinstance(self.computation[waits[-1]], Barrier):
            return False
        if any(isinstance(one, Await) and one.steps_back for one in self.computation):
            return False
        first, last = waits[0], waits[-1]
        starts = [one.task for one in self.computation[:first] if isinstance(one, Start)]
        after = self.computation[last + 1 :]
        return (
            starts == list(range(len(self.tasks)))
            and len(waits) == last + 1 - first
            and all(isinstance(one, Compute) for one in after)
        )

    @property
    def passes(self) -> tuple[TaskTrace, ...]:
        """The collectives that it starts during the forward and backward passes at its beginning, in order;
        none if it does not begin with computation labelled by `passes_until`."""
        lane, count = self.computation, 0
        while 2 * count + 1 < len(lane):
            computed, started = lane[2 * count : 2 * count + 2]
            labelled = isinstance(computed, Compute) and computed.label == passes_until(count)
            if not labelled or not isinstance(started, Start) or started.task != count:
                break
            count += 1
        return self.tasks[:count]

    @property
    def stands_alone(self) -> bool:
        """True if it awaits all collectives that it starts, and no others."""
        waits = {(one.task, one.steps_back) for one in self.computation if isinstance(one, Await)}
        return waits == {(one.task, 0) for one in self.computation if isinstance(one, Start)}

    @property
    def ready(self) -> tuple[float, ...]:
        """The times at which the inputs of its collectives were ready, in the order of computation."""
        return tuple(operation.at for operation in self.computation if isinstance(operation, Start))

    @property
    def update_s(self) -> float:
        """Seconds of computation after the step's last barrier; 0 if it does not end with a barrier and
        computation."""
        if len(self.computation) < 2:
            return 0.0
        barrier, last = self.computation[-2:]
        if not isinstance(barrier, Barrier) or not isinstance(last, Compute):
            return 0.0
        return last.end - barrier.end if last.seconds is None else last.seconds


def passes_until(bucket: int) -> str:
    """The label of the computation that ends when the bucket's gradient is ready."""
    return f"{'backward' if bucket else 'forward, backward'} until bucket {bucket}"


STAGE_PASSES = ("forward", "backward")


def stage_pass(direction: str, micro_batch: int) -> str:
    """The label of a micro-batch's pass through a stage, in one of the directions of `STAGE_PASSES`."""
    return f"{direction} {micro_batch}"


def stage_pass_of(label: str) -> tuple[str, int] | None:
    """The arguments with which `stage_pass` makes a label; None if it does not make this label."""
    direction, _, number = label.partition(" ")
    return (direction, int(number)) if direction in STAGE_PASSES and number.isdecimal() else None


def forward_of(block: int) -> str:
    """The label of a block's forward pass."""
    return f"forward of block {block}"


def backward_of(block: int) -> str:
    """The label of a block's backward pass."""
    return f"backward of block {block}"


def block_pass_of(label: str) -> tuple[str, int] | None:
    """The pass of a label made by `forward_of` or `backward_of`, as (`forward` or `backward`, block); None
    for other labels."""
    direction, _, number = label.partition(" of block ")
    return (direction, int(number)) if direction in STAGE_PASSES and number.isdecimal() else None


ENCODE, DECODE, GATHERED = "encode", "decode", "weights"
"""First words of labels of computation that encodes messages to send or decodes received ones."""


def encodes_or_decodes(label: str) -> bool:
    """True if computation under this label belongs to a codec, not to the model."""
    return label.partition(" ")[0] in (ENCODE, DECODE, GATHERED)


def lane_shape(lane: Sequence[LaneOperation]) -> tuple[tuple[object, ...], ...]:
    """The operations of a lane (computation, starts and waits) without their times."""
    return tuple(
        ("compute", operation.label)
        if isinstance(operation, Compute)
        else ("start", operation.task)
        if isinstance(operation, Start)
        else ("await", operation.task, operation.steps_back)
        if isinstance(operation, Await)
        else ("barrier",)
        for operation in lane
    )


StepTrace = Mapping[int, RankTrace]
"""rank → its part of the step"""


def step_end(trace: StepTrace) -> float:
    """The time at which the computation of the slowest rank ended."""
    return max(own.end for own in trace.values())


def spans(trace: RankTrace) -> list[Span]:
    """Spans of computation, codec work and messages, real or simulated, including those of earlier steps'
    collectives."""
    return [*trace.carried, *own_spans(trace)]


def own_spans(trace: RankTrace) -> list[Span]:
    """The spans of the step's own computation and collectives, even beyond its end."""
    of_tasks = (span for task in trace.tasks for span in task_spans(task))
    return [*compute_spans(trace), *wait_spans(trace), *of_tasks]


def compute_spans(trace: RankTrace) -> Iterator[Span]:
    """One span for each piece of computation."""
    for operation in trace.computation:
        if isinstance(operation, Compute):
            yield Span("compute", operation.start, operation.end, 0, operation.label)


def wait_spans(trace: RankTrace) -> Iterator[Span]:
    """One span for each wait in the middle of passes by blocks."""
    lane = trace.computation
    passes = [
        index
        for index, one in enumerate(lane)
        if isinstance(one, Compute) and block_pass_of(one.label) is not None
    ]
    for operation in lane[: passes[-1]] if passes else ():
        if isinstance(operation, Await):
            yield Span("wait", operation.start, operation.end)


def task_spans(task: TaskTrace) -> Iterator[Span]:
    """A `codec` span for each piece of work, and a `comm` span from each post until it was seen complete."""
    posts: list[Post] = [operation for operation in task.operations if isinstance(operation, Post)]
    for operation in task.operations:
        if isinstance(operation, Work) and operation.end > operation.start:
            yield Span("codec", operation.start, operation.end, 0, f"bucket {task.bucket}")
        elif isinstance(operation, Wait):
            post = posts[operation.number]
            if post.phase != MEASURE:
                sent = sum(num_bytes for _, num_bytes in post.sends)
                yield Span("comm", post.at, operation.end, sent, post.phase)
