"""A step as data: what each rank computed and waited for, and what each of its collectives did.

A rank has two lanes. Its computation is a sequence of operations that may start collectives, await their
results and meet the other ranks. Its communication is the collectives themselves (`TaskTrace`), whose threads
take turns. Breakdown, overlap and bandwidth are made from a trace's `spans`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradwire.harness.timing.measure.spans import Span

MEASURE = "measure"
"""The phase of messages that belong to the measurement: neither counted nor paced."""

BACKEND = "backend"
"""The phase of what the communication library does by itself, message by message unknown to us."""

CONTROL = "control"
"""The phase of what ranks send to hold alike what is not synchronized, such as buffers."""

ACTIVATIONS = "activations"
"""The phase of what one rank sends to another by itself: activations, and the gradients of them."""

WEIGHTS = "weights"
"""The phase of weights, or differences of weights, that ranks send one another after an update."""

PROBE = "probe"
"""The phase of what a codec sends only to find out how long it takes."""

PHASES = ("metadata", "reduce_scatter", "all_gather")
"""The phases of every synchronization."""

COUNTED_PHASES = (*PHASES, WEIGHTS, ACTIVATIONS, CONTROL, PROBE)
"""All phases that bytes are counted under."""

NOT_ENCODED = (ACTIVATIONS, CONTROL, PROBE)
"""The phases that wire bits per coordinate do not count: what is sent is no encoded gradient or weight."""

TRANSFERS = 1 << 20
"""The bucket of all that one rank sends another by itself: whatever else both take part in, its k-th message
is the k-th that the other receives from it."""

Message = tuple[int, int]
"""(peer, bytes)"""


class Part(NamedTuple):
    """Seconds of work under one name (`encode`, `statistics`, …) for `share` of the bucket's coordinates."""

    label: str
    share: float
    seconds: float


class Work(NamedTuple):
    """Codec work between two messages, in seconds of the step; what no part covers is Python."""

    start: float
    end: float
    parts: tuple[Part, ...] = ()


class Urgency(NamedTuple):
    """The priority of messages: those of a lower `level` go first.

    On a link they have all of it that they can use, and the others the rest. On a connection, which carries
    one message at a time, they are next; within a level those posted earlier or, if `newest_first`, later.
    One under way gives way to a more urgent one on its connection where a multiple of `boundary` bytes of it
    has been carried; 0: never.
    """

    level: int = 0
    newest_first: bool = False
    boundary: int = 0


ORDINARY = Urgency()


class Post(NamedTuple):
    """Messages given to the transport together; `copies` if several peers are sent the same bytes and none
    anything else, which a network with multicast carries as one. `urgency` is that of those sent."""

    at: float
    phase: str
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    copies: bool = False
    urgency: Urgency = ORDINARY


class Wait(NamedTuple):
    """Waiting for the `number`-th post of the task; `end` is when all its messages had come through."""

    number: int
    start: float
    end: float


Operation = Work | Post | Wait


class TaskTrace(NamedTuple):
    """One collective of one rank, as a rule the synchronization of a bucket; it could begin at `ready`,
    `in_turn` only after the one before it had ended."""

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

    `seconds` is the time to its end since the lane last woke, i.e. since the step began or a wait ended;
    None means what `end` says. A difference of two times would be off in its last digit.
    """

    start: float
    end: float
    label: str
    seconds: float | None = None


class Start(NamedTuple):
    """The input of the rank's `task`-th collective is there: it may begin."""

    at: float
    task: int


class Await(NamedTuple):
    """Computation waits for the result of the rank's `task`-th collective of the step `steps_back` before
    this one (0: of this one)."""

    task: int
    start: float
    end: float
    steps_back: int = 0


class Barrier(NamedTuple):
    """Computation waits until all ranks have come to this point."""

    start: float
    end: float


LaneOperation = Compute | Start | Await | Barrier

UPDATE = "update"
"""The label of the optimizer's step."""


class RankTrace(NamedTuple):
    """One rank's step, in seconds from the step's start: its computation, in order, its collectives, and when
    the computation ended.

    Where each rank begins its steps when it is ready, `window` is from when to when this step counts for the
    rank (None: from 0 to the end of the slowest), and `carried` what earlier steps' collectives did in it.
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
        """The step of synchronous data parallelism: forward and backward until `ready[b]`, when bucket b's
        gradient is there and its collective may begin; when all ranks have all gradients, the update, which
        takes `update_s` and ends at `end`."""
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
        """True if it has the form of `synchronous`, with that one's labels."""
        same = RankTrace.synchronous(self.ready, self.tasks, self.update_s, self.end)
        return lane_shape(self.computation) == lane_shape(same.computation)

    @property
    def is_data_parallel(self) -> bool:
        """True if it computes and starts all its collectives in order, waits for them, not for those of other
        steps, and for all ranks, and then only computes: synchronous data parallelism, under whatever
        labels."""
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
        """The collectives that it starts, in their order, during forward and backward passes that it begins
        with; none if it does not begin with computation under the labels of `passes_until`."""
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
        """True if it awaits all that it starts, and nothing else."""
        waits = {(one.task, one.steps_back) for one in self.computation if isinstance(one, Await)}
        return waits == {(one.task, 0) for one in self.computation if isinstance(one, Start)}

    @property
    def ready(self) -> tuple[float, ...]:
        """The times at which the inputs of its collectives were there, in the order of computation."""
        return tuple(operation.at for operation in self.computation if isinstance(operation, Start))

    @property
    def update_s(self) -> float:
        """Seconds of computation after the step's last barrier, 0 if it does not end in this way."""
        if len(self.computation) < 2:
            return 0.0
        barrier, last = self.computation[-2:]
        if not isinstance(barrier, Barrier) or not isinstance(last, Compute):
            return 0.0
        return last.end - barrier.end if last.seconds is None else last.seconds


def passes_until(bucket: int) -> str:
    """The label of the computation that ends when the bucket's gradient is there."""
    return f"{'backward' if bucket else 'forward, backward'} until bucket {bucket}"


STAGE_PASSES = ("forward", "backward")


def stage_pass(direction: str, micro_batch: int) -> str:
    """The label of a micro-batch's pass through a stage, in one of the directions of `STAGE_PASSES`."""
    return f"{direction} {micro_batch}"


def stage_pass_of(label: str) -> tuple[str, int] | None:
    """The arguments from which `stage_pass` made a label; None if it did not."""
    direction, _, number = label.partition(" ")
    return (direction, int(number)) if direction in STAGE_PASSES and number.isdecimal() else None


def forward_of(block: int) -> str:
    """The label of a block's forward pass."""
    return f"forward of block {block}"


def backward_of(block: int) -> str:
    """The label of a block's backward pass."""
    return f"backward of block {block}"


def block_pass_of(label: str) -> tuple[str, int] | None:
    """The pass that `forward_of` or `backward_of` made a label of, as (`forward` or `backward`, block); None
    if neither did."""
    direction, _, number = label.partition(" of block ")
    return (direction, int(number)) if direction in STAGE_PASSES and number.isdecimal() else None


ENCODE, DECODE, GATHERED = "encode", "decode", "weights"
"""First words of labels of computation that encodes or decodes what a rank sends or has received."""


def encodes_or_decodes(label: str) -> bool:
    """True if computation under this label is a codec's, not the model's."""
    return label.partition(" ")[0] in (ENCODE, DECODE, GATHERED)


def lane_shape(lane: Sequence[LaneOperation]) -> tuple[tuple[object, ...], ...]:
    """The operations of a rank, what it computes, starts and waits for, without the times."""
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
    """Computation, codec work and messages, real or simulated, of earlier steps' collectives, too."""
    return [*trace.carried, *own_spans(trace)]


def own_spans(trace: RankTrace) -> list[Span]:
    """The spans of the step's own computation and collectives, however long they last."""
    of_tasks = (span for task in trace.tasks for span in task_spans(task))
    return [*compute_spans(trace), *wait_spans(trace), *of_tasks]


def compute_spans(trace: RankTrace) -> Iterator[Span]:
    """One span for each piece of computation."""
    for operation in trace.computation:
        if isinstance(operation, Compute):
            yield Span("compute", operation.start, operation.end, 0, operation.label)


def wait_spans(trace: RankTrace) -> Iterator[Span]:
    """One span for each wait in the middle of passes that go by blocks."""
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
    """`codec` for each piece of work, `comm` from each post until its completion was seen."""
    posts: list[Post] = [operation for operation in task.operations if isinstance(operation, Post)]
    for operation in task.operations:
        if isinstance(operation, Work) and operation.end > operation.start:
            yield Span("codec", operation.start, operation.end, 0, f"bucket {task.bucket}")
        elif isinstance(operation, Wait):
            post = posts[operation.number]
            if post.phase != MEASURE:
                sent = sum(num_bytes for _, num_bytes in post.sends)
                yield Span("comm", post.at, operation.end, sent, post.phase)
