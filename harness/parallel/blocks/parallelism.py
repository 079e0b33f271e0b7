"""Data parallelism by blocks: synchronized newest first in the backward pass, updated in the next forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.interface import Elapsed, Layout
from gradwire.harness.comm.world.interface import (
    Collective,
    CollectivePlace,
    Computing,
    RankStep,
    Started,
    Submission,
    World,
)
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.accumulation import Accumulation, GradientBucket, Hooks, StartedBuckets
from gradwire.harness.parallel.base import RankOutcome, Replicas
from gradwire.harness.parallel.blocks.groups import make_blocks
from gradwire.harness.parallel.blocks.updates import BlockUpdaters, Pending
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.gradient_error import GradientError, gradient_error, kept_buckets
from gradwire.harness.parallel.interface import Batch, MicroBatches, Parallelism, ParallelSetup, ReadPart
from gradwire.harness.parallel.settings import BlocksConfig
from gradwire.harness.parallel.synchronize import refinement, synchronization
from gradwire.harness.timing.trace.step import Urgency, backward_of, forward_of

NORM = "norm"
"""The label of the computation of the gradient's norm."""


class BlocksPass:
    """One rank's forward and backward pass. Before the forward pass uses a block, it waits for the block's
    update."""

    def __init__(
        self,
        rank_step: RankStep,
        computing: Computing,
        blocks: int,
        micro_batches: int,
        update: Callable[[int], None],
    ) -> None:
        self._rank_step, self._computing, self._update = rank_step, computing, update
        self._to_use, self._forward_passes = list(range(blocks)), micro_batches
        self._blocks = blocks
        self.elapsed: Elapsed | None = None
        """Gives the seconds since the last backward pass began, if time passes meanwhile."""

    def use(self, number: int) -> None:
        """Called when the forward pass is about to use a block. Raises RuntimeError if it has skipped an
        earlier block, whose gradients would then be attributed to later ones."""
        if number in self._to_use:
            if self._to_use[0] < number:
                raise RuntimeError(
                    f"parallel.layers: block {number} is used before block {self._to_use[0]}; give blocks in "
                    "the order of the forward pass"
                )
            self._to_use.remove(number)
            self._computing.begin(forward_of(number))
            self._update(number)

    def end_forward(self) -> None:
        """Called at the end of a forward pass; blocks that it has not used are updated now."""
        for number in list(self._to_use):
            self.use(number)
        self._forward_passes -= 1
        if not self._forward_passes:
            self._computing.begin(backward_of(self._blocks - 1))
            self.elapsed = self._rank_step.stopwatch()


class Blocks(Replicas):
    """One optimizer for each block, shared by all of the world's ranks in this process. Buckets are blocks in
    the order in which a backward pass computes their gradients, the last block first."""

    _updater: BlockUpdaters

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        assert isinstance(setup.parallel, BlocksConfig)
        self._blocks = make_blocks(model, setup.parallel.num_blocks, setup.parallel.layers)
        self._prepared = accelerator.prepare_model(model, evaluation_mode=True)
        super().__init__(setup, model, accelerator, world)
        named = {name: p for block in self._blocks for name, p in block.parameters.items()}
        self._hooks = Hooks(named)
        for block in self._blocks:
            for module in block.modules:
                module.register_forward_pre_hook(partial(self._before_forward, block.number))
        model.register_forward_hook(self._after_forward)
        supported = partial(next(iter(self._codecs.values())).supports, setup.topology, world.size)
        layouts = BucketLayouts(model, supported)
        made = [
            layouts.named(tuple(block.parameters), torch.float32, world.device)
            for block in reversed(self._blocks)
        ]
        self._buckets = [GradientBucket(each, torch.zeros(each.numel, device=world.device)) for each in made]
        self._updater = BlockUpdaters(model, self._blocks, self._buckets, setup.optimizer)
        self._pass: BlocksPass | None = None
        self._pending: dict[int, Pending] = {}
        self._to_apply: set[int] = set()  # blocks whose pending updates have not been carried out

    def _before_forward(self, number: int, module: nn.Module, arguments: object) -> None:
        if self._pass is not None:
            self._pass.use(number)

    def _after_forward(self, module: nn.Module, arguments: object, output: object) -> None:
        if self._pass is not None:
            self._pass.end_forward()

    def _warm_up_passes(self, batches: MicroBatches, passes: int) -> None:
        for index in range(passes):
            self._world.run_step(-1 - index, self.programs(-1 - index, batches, 0.0))
            for own in self._pending.values():
                for started in own.started.values():
                    started.result()
            self._pending.clear()
            self._to_apply.clear()
        self._updater.warm_up()

    async def _step_of_rank(
        self, step: int, batches: Sequence[Batch], rate: float, measured: bool, rank_step: RankStep
    ) -> RankOutcome:
        rank = rank_step.rank
        started, loss, elapsed = self._run_pass(step, batches, rank_step, measured=measured)
        means = [await mean for mean in started]
        with rank_step.compute(NORM):
            norm = rank_step.replicated(partial(self._updater.norm, means))
        if math.isfinite(norm):
            by_number, refined = dict(enumerate(reversed(means))), dict[int, Started[Tensor]]()
            if self._codecs[rank].refines:
                refined = self._refine(step, means, elapsed, rank_step)
            self._pending[rank] = Pending(norm, rate, by_number, refined)
            self._to_apply = set(range(len(self._blocks)))
        else:
            self._pending.pop(rank, None)
        return RankOutcome(loss, norm, kept_buckets(started, means) if measured else ())

    def _run_pass(
        self, step: int, batches: Sequence[Batch], rank_step: RankStep, *, measured: bool
    ) -> tuple[list[Started[Tensor]], Tensor, Elapsed | None]:
        """Runs a rank's pass and starts its blocks' synchronization. Returns the started collectives, the
        mean loss of its micro-batches, and a function that returns the seconds since its backward pass began.
        """
        rank, last = rank_step.rank, len(self._blocks) - 1

        def synchronize(bucket: GradientBucket, number: int, x: Tensor) -> Collective[Tensor]:
            # A launch writes the mean where the last one did: the next forward pass has used that by then.
            this_round, check = self._round(step, bucket.layout, rank, number), self._setup.check_hashes
            return synchronization(self._codecs[rank], x, this_round, check)

        self._buffers.load(rank)
        with rank_step.compute(forward_of(0)) as computing:
            update = partial(self._update, rank_step)
            self._pass = passed = BlocksPass(rank_step, computing, len(self._blocks), len(batches), update)
            starts = StartedBuckets(
                rank_step,
                measured,
                computing,
                label=lambda bucket: backward_of(max(0, last - bucket)),
                has_one_result=True,
                urgency=Urgency(0, newest_first=True, boundary=self._codecs[rank].boundary),
            )
            gradients = Accumulation(starts, self._buckets, synchronize, len(batches))
            try:
                with self._hooks.handing(gradients.receive):
                    loss = self._forward_backward(step, batches, rank)
                    self._check_all_used(gradients)
            finally:
                self._pass = None
        return gradients.started, loss, passed.elapsed

    def _check_all_used(self, gradients: Accumulation) -> None:
        if gradients.unused:
            raise RuntimeError(
                f"parallel=blocks: {gradients.unused[0]} gets no gradient, and its block waits for it for "
                "ever; freeze it, or use parallel=ddp parallel.find_unused_parameters=true"
            )

    def _refine(
        self, step: int, means: Sequence[Tensor], elapsed: Elapsed | None, rank_step: RankStep
    ) -> dict[int, Started[Tensor]]:
        """Starts the refinement of each block, in the order in which the next forward pass uses the
        blocks.
        """
        rank, found = rank_step.rank, dict[int, Started[Tensor]]()
        codec = self._codecs[rank]

        def make(bucket: int, mean: Tensor) -> Collective[Tensor]:
            this_round = self._round(step, self._buckets[bucket].layout, rank, bucket)
            return refinement(codec, mean, this_round, elapsed, self._setup.check_hashes)

        for number, bucket in enumerate(reversed(range(len(self._buckets)))):
            found[number] = rank_step.start(
                partial(make, bucket),
                means[bucket],
                Submission(
                    buffers=f"refine {self._buckets[bucket].layout.uid}",
                    coordinates=means[bucket].numel(),
                    in_turn=True,
                    is_own=True,
                    has_one_result=True,
                    urgency=Urgency(1, boundary=codec.boundary),
                ),
            )
        return found

    def _update(self, rank_step: RankStep, number: int) -> None:
        """Applies the pending update of a block, once its mean has arrived."""
        pending = self._pending.get(rank_step.rank)
        if pending is None:
            return
        mean = pending.means.pop(number, None)
        if number in pending.started:
            mean = rank_step.wait(pending.started.pop(number))
        if mean is not None:
            rank_step.replicated(partial(self._apply, number, mean, pending))

    def _apply(self, number: int, mean: Tensor, pending: Pending) -> None:
        if number in self._to_apply:
            self._to_apply.remove(number)
            self._updater.apply(number, mean, pending.norm, pending.rate)

    def finish(self) -> None:
        """Applies all pending updates. The next step still waits for their collectives, because on a
        simulated clock these are still in flight."""
        for number in range(len(self._blocks)):
            for pending in self._pending.values():
                if number in pending.means:
                    self._apply(number, pending.mean(number), pending)
        super().finish()

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        assert not self._to_apply, "evaluate() before finish()"
        return super().evaluate(objective, micro_batch)

    def layout(self, rank: int) -> tuple[Layout, ...]:
        return tuple(bucket.layout for bucket in self._buckets)

    def gradient_error(self) -> GradientError:
        last = len(self._blocks) - 1
        applied = {
            rank: [
                replace(copy, synchronized=self._pending[rank].mean(last - bucket))
                for bucket, copy in enumerate(copies)
                if rank in self._pending
            ]
            for rank, copies in self._copies.items()
        }
        return gradient_error(self._world, applied)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        own = super().state_dict()
        for rank, pending in self._pending.items():
            own[_pending_part(rank)] = {"places": pending.places(len(self._blocks))}
        return own

    def load_state_dict(self, read: ReadPart) -> None:
        super().load_state_dict(read)
        self._pending.clear()
        self._to_apply.clear()
        for rank in self._codecs:
            places: Any = read(_pending_part(rank)).get("places", torch.empty(0, device="cpu")).tolist()
            started = {
                number: self._world.resumed(rank, CollectivePlace(*place), torch.empty(0, device="cpu"))
                for number, place in enumerate(places)
                if place[0] >= 0
            }
            if started:
                self._pending[rank] = Pending(0.0, 0.0, {}, started)


def _pending_part(rank: int) -> str:
    """The name of the checkpoint part that lists the collectives which a rank's next forward pass waits
    for.
    """
    return f"pending-rank{rank}"


def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds data parallelism by blocks in `world`."""
    return Blocks(setup, model, accelerator, world)
