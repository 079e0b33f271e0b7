"""How long a rank computes in a step: as measured, or as given, with jitter and stragglers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.timing.trace.step import (
    STAGE_PASSES,
    TRANSFERS,
    Await,
    Barrier,
    Compute,
    LaneOperation,
    RankTrace,
    Start,
    passes_until,
    stage_pass_of,
)

FORWARD_SHARE = 1 / 3
"""The forward pass's share of a given compute time. The backward pass takes twice as long, and gradients get
ready in proportion to their number of coordinates."""


@dataclass(frozen=True)
class ComputeTimes:
    """`given_s` replaces what was measured: seconds that a rank computes in a step that begins with forward
    and backward passes, before its last gradient is ready; what it computes later takes no time. A stage of a
    pipeline computes all its micro-batches in so long, each of them in the same time. Other steps compute for
    so long as well, each part for as large a share as was measured.

    Every step a rank's computation is scaled by a factor from [1 − `jitter`, 1 + `jitter`], drawn evenly, and
    with probability `straggler_share` by `straggler_factor` as well.
    """

    given_s: float | None = None
    jitter: float = 0.0
    straggler_share: float = 0.0
    straggler_factor: float = 1.0
    seed: int = 0

    def factor(self, step: int, rank: int) -> float:
        """The straggler's and jitter's factor: a pure function of (seed, step, rank), whatever else is
        simulated."""
        if not self.jitter and not self.straggler_share:
            return 1.0
        drawn = random.Random(derive_seed(self.seed, "compute", step, rank))
        factor = 1 + self.jitter * (2 * drawn.random() - 1)
        return factor * self.straggler_factor if drawn.random() < self.straggler_share else factor

    def times(
        self, ready: Sequence[float], update_s: float, coordinates: Sequence[int], step: int, rank: int
    ) -> tuple[list[float], float]:
        """When each bucket's gradient is there and how long the update takes, in seconds, given the measured
        ones and the buckets' sizes."""
        factor = self.factor(step, rank)
        if self.given_s is None:
            return [factor * at for at in ready], factor * update_s
        total, done, found = sum(coordinates), 0, []
        for size in coordinates:
            done += size
            found.append(factor * self.given_s * (FORWARD_SHARE + (1 - FORWARD_SHARE) * done / total))
        return found, 0.0

    def lane(self, own: RankTrace, step: int, rank: int) -> tuple[LaneOperation, ...]:
        """A rank's computation with the `seconds` that each part takes here; other times are as measured."""
        if self.given_s is None:
            return tuple(_scaled(own.computation, self.factor(step, rank)))
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
        labels = {one.label for one in own.computation if isinstance(one, Compute)}
        micro_batches = len({found for label in labels if (found := stage_pass_of(label))}) // 2
        if micro_batches:
            return tuple(_stage(own, self.factor(step, rank) * self.given_s / micro_batches))
        measured = sum(one.end - one.start for one in own.computation if isinstance(one, Compute))
        share = self.given_s / measured if measured > 0 else 1.0
        return tuple(_scaled(own.computation, self.factor(step, rank) * share))


def _stage(own: RankTrace, passes_s: float) -> Iterator[LaneOperation]:
    """A pipeline's stage whose passes of one micro-batch, forward and backward, take `passes_s`; what else it
    computes takes no time. In a pass that starts collectives gradients get ready in proportion to their
    coordinates."""
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
                share = FORWARD_SHARE if found[0] == STAGE_PASSES[0] else 1 - FORWARD_SHARE
                if ready[one.label]:
                    share *= _coordinates_ready(own, following) / ready[one.label]
                woken_s += share * passes_s
            yield one._replace(seconds=woken_s)
            continue
        if isinstance(one, Await | Barrier):
            woken_s = 0.0
        yield one


def _coordinates_ready(own: RankTrace, following: LaneOperation | None) -> int:
    """Coordinates of the bucket that is started there: 0 where nothing is, or a message of activations."""
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
