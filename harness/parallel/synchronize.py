"""One bucket's synchronization, or its scatter: the coroutine that every rank of every world runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture, Codec, Decision, Elapsed, Layout, Round
from gradwire.codecs.shards import Shard
from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.captured_rounds import Capturable, Identity
from gradwire.harness.comm.world.interface import Collective, RankProgram, RankStep, Submission, World
from gradwire.harness.parallel.buckets import MemoryOrder
from gradwire.harness.timing.measure.training_metrics import ACTIVITY_PREFIX
from gradwire.harness.timing.trace.step import MEASURE


def synchronization(
    codec: Codec,
    x: Tensor,
    this_round: Round,
    check_hashes: bool,
    *,
    order: MemoryOrder | None = None,
) -> Collective[Tensor]:
    """The coroutine that turns bucket `x` of `this_round.rank` into the mean over all ranks.

    With one rank the gradient is returned unchanged. Raises RuntimeError if the codec's result does not fit
    the bucket or, with `check_hashes`, differs between ranks. If the codec allows it, later steps may launch
    the captured round: the result is then always in the same memory.

    `order` is the memory order of `x` and of the mean, if it may differ from the layout's.
    """
    return Synchronization(codec, x, this_round, check_hashes, order)


@dataclass(frozen=True)
class BucketRound(Capturable):
    """A codec's round of bucket `x`, which may be captured."""

    codec: Codec
    x: Tensor
    this_round: Round

    @property
    def key(self) -> Key:
        return self.codec.captured_key(self.this_round)

    def prepare(self) -> None:
        self.codec.prepare_capture(self.this_round)

    def refusal(self) -> str | None:
        return self.codec.refuses_capture(self.this_round.layout)

    def identity(self) -> Identity | str:
        """Refuses a single rank, and what `differs` says."""
        own, x = self.this_round, self.x
        if (reason := self.differs()) is not None:
            return reason
        if own.size == 1:
            return "a single rank sends nothing"
        subject = id(self.codec), own.layout.uid, own.bucket, own.rank, own.size, own.seed, x.numel(), x.dtype
        return Identity((type(self), *subject), x.data_ptr(), self.codec.captured_form(own))

    def differs(self) -> str | None:
        """The reason why this step's round has to do more than a launch does; None if there is none."""
        return None

    def captured(self, capture: Capture) -> Self:
        return replace(self, this_round=replace(self.this_round, capture=capture))


@dataclass(frozen=True)
class Synchronization(BucketRound):
    """The collective that `synchronization` makes."""

    check_hashes: bool
    order: MemoryOrder | None

    async def __call__(self, comm: ScheduledCollectives) -> Tensor:
        x, this_round = self.x, self.this_round
        if this_round.size == 1:
            return x
        if self.order is not None:
            x = self.order.logical(x)
        mean = await self.codec.synchronize(x, this_round, comm)
        # DistributedDataParallel would silently accept a result of another length or dtype.
        if mean.shape != x.shape or mean.dtype != x.dtype:
            raise RuntimeError(f"codec returned {mean.dtype}{list(mean.shape)} for {x.dtype}{list(x.shape)}")
        if self.check_hashes:
            await compare_hashes(mean, f"step {this_round.step}", "gradients", comm)
        return mean if self.order is None else self.order.in_memory(mean)

    def identity(self) -> Identity | str:
        found = super().identity()
        if isinstance(found, str) or self.order is None:
            return found
        return replace(found, subject=(found.subject, tuple(sorted(self.order.permuted.items()))))

    def differs(self) -> str | None:
        return "the host compares the result's hashes" if self.check_hashes else None


def mean_over_active(
    synchronize: Collective[Tensor], has_data: bool, device: torch.device, keep: Callable[[Tensor], None]
) -> Collective[Tensor]:
    """The coroutine that rescales the mean over all ranks to the mean over the ranks with data, at least one;
    the gradients of the others are zeros. `keep` is called with the mean over all ranks."""

    async def run(comm: ScheduledCollectives) -> Tensor:
        (active,) = await comm.reduce([(torch.tensor([float(has_data)], device=device), "sum")])
        mean = await synchronize(comm)
        keep(mean)
        return (mean * (comm.size / active)).to(mean.dtype)

    return run


def refused_graphs(codec: Codec, device: torch.device, check_hashes: bool) -> str | None:
    """None, or the reason why no round of this codec can be captured, for users who require graphs."""
    if device.type != "cuda":
        return f"CUDA graphs need ranks on GPUs, and these are on {device.type}"
    if check_hashes:
        return "check_hashes=true has the host compare the result of every round"
    return codec.refuses_capture(Layout.flat(1 << 20, device=device))


def refinement(
    codec: Codec, mean: Tensor, this_round: Round, elapsed: Elapsed | None, check_hashes: bool
) -> Collective[Tensor]:
    """The coroutine that refines a bucket's `mean`, if the codec `refines`: see `Codec.refine`. Raises
    RuntimeError as `synchronization` does."""

    async def run(comm: ScheduledCollectives) -> Tensor:
        if this_round.size == 1 or not codec.refines:
            return mean
        refined = await codec.refine(mean, this_round, comm, elapsed)
        if refined.shape != mean.shape or refined.dtype != mean.dtype:
            raise RuntimeError(f"codec refined {mean.dtype}{list(mean.shape)} to {list(refined.shape)}")
        if check_hashes:
            await compare_hashes(refined, f"step {this_round.step}", "gradients", comm)
        return refined

    return run


@dataclass(frozen=True)
class Scattering(BucketRound):
    """The coroutine that reduces bucket `x` of `this_round.rank` to its `shard` of the mean over all ranks.

    Raises RuntimeError if the codec's result does not fit the shard. Later steps may launch the captured
    round: the result is then always in the same memory.
    """

    shard: Shard

    async def __call__(self, comm: ScheduledCollectives) -> Tensor:
        x, this_round, numel = self.x, self.this_round, self.shard.numel
        if this_round.size == 1:
            return self.shard.take(x)
        mean = await self.codec.scatter(x, this_round, comm)
        if mean.shape != (numel,) or mean.dtype != torch.float32:
            raise RuntimeError(f"codec returned {mean.dtype}{list(mean.shape)} for a shard of {numel}")
        return mean


def synchronize_buckets(
    codec: Codec,
    step: int,
    seed: int,
    size: int,
    buckets: Sequence[tuple[Layout, Tensor]],
    *,
    check_hashes: bool,
) -> RankProgram[list[Tensor]]:
    """A rank's program for a step that only synchronizes: returns the buckets' means.

    `buckets` are this rank's own, all of them ready when the step begins.
    """

    async def run(rank_step: RankStep) -> list[Tensor]:
        def make(index: int, layout: Layout, x: Tensor) -> Collective[Tensor]:
            this_round = Round(step, layout, rank_step.rank, size, seed, index)
            return synchronization(codec, x, this_round, check_hashes)

        started = [
            rank_step.start(
                partial(make, index, layout),
                x,
                Submission(
                    buffers=str(layout.uid),
                    coordinates=layout.numel,
                    in_turn=codec.traits.uses_backend,
                    is_own=True,
                ),
            )
            for index, (layout, x) in enumerate(buckets)
        ]
        return [await mean for mean in started]

    return run


def end_codecs(
    world: World,
    codecs: Mapping[int, Codec],
    step: int,
    *,
    skipped: bool = False,
    unused: Collection[str] = (),
) -> tuple[Mapping[str, float], Decision]:
    """Ends a step for the codecs of the ranks in this process; clock-driven codecs get the world's
    observations. If the step is `skipped`, none of its means are applied; otherwise all but those of the
    `unused` parameters are.

    Returns the codecs' logged values, their activity by `activity/<name>`, and their decision for the next
    step, all the same on all ranks.
    """
    if any(codec.traits.clock_driven for codec in codecs.values()):
        for rank, observations in world.observations().items():
            codecs[rank].observe(observations)
    for codec in codecs.values():
        codec.take_back(unused)
    logged = [codec.skip_step(step) if skipped else codec.end_step(step) for codec in codecs.values()]
    first = next(iter(codecs.values()))
    activity = {f"{ACTIVITY_PREFIX}{name}": value for name, value in first.activity().items()}
    return {**logged[0], **activity}, decision_of(first)


async def compare_hashes(x: Tensor, when: str, what: str, comm: ScheduledCollectives) -> None:
    """Raises RuntimeError, worded with `when` and `what`, unless all ranks hold the same bytes in `x`."""
    digest = hashlib.blake2b(x.cpu().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(x.device)
    hashes = await comm.in_phase(MEASURE).all_gather(own)
    different = [rank for rank, other in enumerate(hashes) if not torch.equal(other, hashes[0])]
    if different:
        raise RuntimeError(f"{when}: ranks {different} hold other {what} than rank 0 after the round")
