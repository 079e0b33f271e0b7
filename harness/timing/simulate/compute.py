"""Computation times of a rank in a step: measured or given, with jitter and stragglers.

The blocks of a measured run can be given to another run's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradwire.harness.network.settings import FORWARD_SHARE
from gradwire.harness.timing.simulate.blocks import (
    BACKWARD,
    FORWARD,
    ComputeBlock,
    Variation,
    blocks_in_time,
)
from gradwire.harness.timing.simulate.profile import LaneTimes
from gradwire.harness.timing.trace.step import (
    TRANSFERS,
    Await,
    Barrier,
    Compute,
    LaneOperation,
    RankTrace,
    Start,
    StepTrace,
    block_pass_of,
    passes_until,
    stage_pass_of,
)


@dataclass(frozen=True)
class ComputeTimes:
    """`given_s` replaces measured times. In a step that begins with forward and backward passes it is the
    time until the last gradient is ready, in seconds; later computation takes no time. `forward_share` of it
    is the forward pass, and gradients become ready in proportion to their number of coordinates. A stage of a
    pipeline takes `given_s` for all its micro-batches, each the same time. In other steps `given_s` is
    distributed over the parts in the measured proportions.

    `blocks`, in forward order, spread the time over the model: passes by blocks take the times of their
    blocks; a bucket is ready when the backward pass of the blocks, the last first, has reached the bucket's
    share of all parameters.

    Without `given_s`, a calibrated `profile` replaces measured times. All times are scaled by `variation`.
    """

    given_s: float | None = None
    forward_share: float = FORWARD_SHARE
    blocks: tuple[ComputeBlock, ...] = ()
    variation: Variation = Variation()
    profile: LaneTimes | None = None

    def times(
        self, ready: Sequence[float], update_s: float, coordinates: Sequence[int], step: int, rank: int
    ) -> tuple[list[float], float]:
        """The times at which each bucket's gradient is ready, and the update's duration, in seconds, from the
        measured ones and the buckets' sizes."""
        factor = self.variation.factor(step, rank)
        if self.given_s is None:
            return [factor * at for at in ready], factor * update_s
        shares, done = list[float](), 0
        for size in coordinates:
            done += size
            shares.append(done / sum(coordinates))
        if not self.blocks and self.variation.jitter_per == "step":
            forward = self.forward_share
            return [factor * self.given_s * (forward + (1 - forward) * share) for share in shares], 0.0
        return list(self._ready(self.given_s, shares, step, rank)), 0.0

    def _ready(self, given_s: float, shares: Sequence[float], step: int, rank: int) -> Iterator[float]:
        """The times at which the backward pass has reached each of the ascending shares of all parameters."""
        forward_s = given_s * self.forward_share
        blocks = self.blocks or (ComputeBlock(1, forward_s, given_s - forward_s),)
        passes = [self._passes(block, number, step, rank) for number, block in enumerate(blocks)]
        at = sum(forward for forward, _ in passes)
        total = sum(block.parameters for block in blocks)
        left, number = (
            0,
            len(blocks) - 1,
        )  # parameters after the block `number`, whose backward begins at `at`
        for share in shares:
            while number and share * total > left + blocks[number].parameters:
                at += passes[number][1]
                left += blocks[number].parameters
                number -= 1
            within = min(1.0, (share * total - left) / blocks[number].parameters)
            yield at + within * passes[number][1]

    def _passes(self, block: ComputeBlock, number: int, step: int, rank: int) -> tuple[float, float]:
        """Seconds of a block's forward and backward pass."""
        forward, backward = (
            self.variation.block_factor(step, rank, number, direction) for direction in (FORWARD, BACKWARD)
        )
        return forward * block.forward_s, backward * block.backward_s

    def lane(self, own: RankTrace, step: int, rank: int) -> tuple[LaneOperation, ...]:
        """A rank's computation with the simulated `seconds` of each part; other times are as measured.

        Raises ValueError if the number of `blocks` differs from the step's.
        """
        if self.profile is not None and self.given_s is None:
            own = own._replace(computation=self.profile.lane(own, rank))
        factor = self.variation.factor(step, rank)
        goes_by_blocks = any(isinstance(one, Compute) and block_pass_of(one.label) for one in own.computation)
        if goes_by_blocks and (self.given_s is not None or self.variation.jitter_per == "block"):
            return tuple(self._by_blocks(own, step, rank))
        if self.given_s is None:
            return tuple(_scaled(own.computation, factor))
        if own.is_data_parallel:
            sizes = [task.coordinates for task in own.tasks]
            ready, update_s = self.times(own.ready, own.update_s, sizes, step, rank)
            lane = RankTrace.synchronous(ready, own.tasks, update_s, own.end).computation
            return tuple(_scaled(lane, 1.0))
        sizes = [task.coordinates for task in own.passes]
        if sizes:
            ready, _ = self.times([0.0] * len(sizes), 0.0, sizes, step, rank)
            seconds = {passes_until(bucket): at for bucket, at in enumerate(ready)}
            return tuple(
                one._replace(seconds=seconds.get(one.label, 0.0)) if isinstance(one, Compute) else one
                for one in own.computation
            )
        if self.blocks or (self.variation.jitter and self.variation.jitter_per == "block"):
            raise ValueError(
                "network.blocks and network.jitter_per=block need steps that begin with forward and backward "
                "passes, and these do not; leave them out"
            )
        labels = {one.label for one in own.computation if isinstance(one, Compute)}
        micro_batches = len({found for label in labels if (found := stage_pass_of(label))}) // 2
        if micro_batches:
            return tuple(_stage(own, factor * self.given_s / micro_batches, self.forward_share))
        measured = sum(one.end - one.start for one in own.computation if isinstance(one, Compute))
        share = self.given_s / measured if measured > 0 else 1.0
        return tuple(_scaled(own.computation, factor * share))

    def _by_blocks(self, own: RankTrace, step: int, rank: int) -> Iterator[LaneOperation]:
        """Passes by blocks with their given times, divided equally if a pass is several operations, or with
        scaled measured times. With given times all other computation takes no time."""
        given = {} if self.given_s is None else self._seconds_of_passes(own, self.given_s)
        seconds_here = measured = 0.0  # since the lane woke
        woken = 0.0
        for index, one in enumerate(own.computation):
            if isinstance(one, Compute):
                until = one.end - woken if one.seconds is None else one.seconds
                block_pass = block_pass_of(one.label)
                if block_pass is None:
                    factor = self.variation.factor(step, rank)
                else:
                    direction, block = block_pass
                    factor = self.variation.block_factor(step, rank, block, direction)
                seconds = until - measured
                if given:
                    seconds = given[one.label] if _is_pass(own.computation, index) else 0.0
                seconds_here, measured = seconds_here + factor * seconds, until
                yield one._replace(seconds=seconds_here)
                continue
            if isinstance(one, Await | Barrier):
                seconds_here = measured = 0.0
                woken = one.end
            yield one

    def _seconds_of_passes(self, own: RankTrace, given_s: float) -> Mapping[str, float]:
        """Seconds of each operation that is a part of a block's pass, by label, before any factor."""
        lane = own.computation
        labels = [one.label for at, one in enumerate(lane) if isinstance(one, Compute) and _is_pass(lane, at)]
        passes = {label: found for label in labels if (found := block_pass_of(label)) is not None}
        sizes = block_sizes(own)
        blocks = self.blocks or self._by_coordinates(sizes, given_s)
        if len(blocks) != len(sizes):
            raise ValueError(
                f"network.blocks has {len(blocks)} blocks and the model is trained in {len(sizes)}; give as "
                "many, or leave it out"
            )
        return {
            label: (blocks[block].forward_s if direction == FORWARD else blocks[block].backward_s)
            / labels.count(label)
            for label, (direction, block) in passes.items()
        }

    def _by_coordinates(self, sizes: Sequence[int], given_s: float) -> tuple[ComputeBlock, ...]:
        """Blocks of these sizes, each with its share of the time in proportion to its coordinates."""
        if not all(sizes):
            raise ValueError(
                f"network.compute_s={given_s:g} cannot be spread over blocks that synchronize no "
                "coordinates; add network.blocks"
            )
        return blocks_in_time([[size, size, size] for size in sizes], given_s, self.forward_share)


def block_sizes(own: RankTrace) -> list[int]:
    """The coordinates of the blocks of a rank's passes, in forward order: the sizes of the buckets that are
    started when a block's backward pass has been computed."""
    sizes: dict[int, int] = {}
    for one, following in pairwise([*own.computation, None]):
        if isinstance(one, Compute) and (found := block_pass_of(one.label)) is not None:
            sizes[found[1]] = sizes.get(found[1], 0) + _coordinates_ready(own, following)
    return [sizes.get(block, 0) for block in range(1 + max(sizes, default=-1))]


def _is_pass(lane: Sequence[LaneOperation], index: int) -> bool:
    """True if the operation is a part of a block's pass, and not one that only leads to a wait."""
    one = lane[index]
    if not isinstance(one, Compute) or block_pass_of(one.label) is None:
        return False
    return index + 1 == len(lane) or not isinstance(lane[index + 1], Await)


def _stage(own: RankTrace, passes_s: float, forward_share: float) -> Iterator[LaneOperation]:
    """A pipeline stage whose passes of one micro-batch, forward and backward, take `passes_s`; other
    computation takes no time. In a pass that starts collectives, gradients become ready in proportion to
    their coordinates."""
    lane, woken_s = own.computation, 0.0
    pairs = list(zip(lane, [*lane[1:], None], strict=True))
    ready: dict[str, int] = {}
    for one, following in pairs:
        if isinstance(one, Compute):
            ready[one.label] = ready.get(one.label, 0) + _coordinates_ready(own, following)
    for one, following in pairs:
        if isinstance(one, Compute):
            found = stage_pass_of(one.label)
            if found is not None:
                share = forward_share if found[0] == FORWARD else 1 - forward_share
                if ready[one.label]:
                    share *= _coordinates_ready(own, following) / ready[one.label]
                woken_s += share * passes_s
            yield one._replace(seconds=woken_s)
            continue
        if isinstance(one, Await | Barrier):
            woken_s = 0.0
        yield one


def _coordinates_ready(own: RankTrace, following: LaneOperation | None) -> int:
    """Coordinates of the bucket that is started next; 0 if none is, or if it is a message of activations."""
    if not isinstance(following, Start) or own.tasks[following.task].bucket == TRANSFERS:
        return 0
    return own.tasks[following.task].coordinates


def _scaled(lane: Sequence[LaneOperation], factor: float) -> Iterator[LaneOperation]:
    woken = 0.0
    for operation in lane:
        if isinstance(operation, Compute):
            seconds = operation.end - woken if operation.seconds is None else operation.seconds
            yield operation._replace(seconds=factor * seconds)
            continue
        if isinstance(operation, Await | Barrier):
            woken = operation.end
        yield operation


def measured_blocks(steps: Iterable[StepTrace]) -> tuple[ComputeBlock, ...]:
    """The blocks of the passes, in forward order; seconds are means over steps and ranks. Empty if passes
    were by buckets or stages.

    The time that a block's forward pass waits is excluded; the update before it is included.
    """
    seconds: dict[tuple[str, int], float] = {}
    sizes: Sequence[int] = ()
    count = 0
    for own in (own for step in steps for own in step.values()):
        count, sizes = count + 1, block_sizes(own)
        for one in own.computation:
            if isinstance(one, Compute) and (at := block_pass_of(one.label)) is not None:
                seconds[at] = seconds.get(at, 0.0) + one.end - one.start
    return tuple(
        ComputeBlock(
            size, seconds.get((FORWARD, block), 0.0) / count, seconds.get((BACKWARD, block), 0.0) / count
        )
        for block, size in enumerate(sizes)
    )


def as_settings(blocks: Sequence[ComputeBlock]) -> str:
    """The keys that give these blocks to `network=simulated`, in the form typed on a command line."""
    forward, backward = sum(block.forward_s for block in blocks), sum(block.backward_s for block in blocks)
    rows = ",".join(
        f"[{block.parameters},{block.forward_s / forward:.4f},{block.backward_s / backward:.4f}]"
        for block in blocks
    )
    compute_s = forward + backward
    return (
        f"network.compute_s={compute_s:.4g} network.forward_share={forward / compute_s:.4f} "
        f"'network.blocks=[{rows}]'"
    )
