"""Data parallelism: every rank holds the whole model; buckets are synchronized while the backward pass is
running.

Accelerate handles device and precision. DistributedDataParallel makes the buckets, and its hook reports when
they are ready. The world provides the ranks: one in this process, or all of them.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated
from torch.nn.parallel import DistributedDataParallel

from gradwire.codecs.interface import Layout
from gradwire.harness.comm.world.interface import Collective, RankStep, World
from gradwire.harness.parallel.accumulation import StartedBuckets
from gradwire.harness.parallel.base import RankOutcome, Replicas
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.interface import Batch, MicroBatches, Parallelism, ParallelSetup, StepOutcome
from gradwire.harness.parallel.passes import settling_passes, wrap
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.parallel.update import Updater
from gradwire.harness.timing.trace.step import UPDATE, passes_until


class BackwardPass(NamedTuple):
    """One rank's pass in progress: the collectives of its buckets, their layouts, and the function that makes
    a collective."""

    starts: StartedBuckets
    layouts: list[Layout]
    synchronize: Callable[[Layout, int, Tensor], Collective[Tensor]]


class DataParallel(Replicas):
    """One optimizer and one set of buckets, shared by all of the world's ranks in this process."""

    _updater: Updater

    def __init__(
        self,
        setup: ParallelSetup,
        model: nn.Module,
        accelerator: Accelerator,
        world: World,
        ddp: DistributedDataParallel,
    ) -> None:
        super().__init__(setup, model, accelerator, world)
        self._prepared = ddp
        ddp.register_comm_hook(None, self._bucket_ready)
        self.settling_passes = settling_passes(ddp)
        self._updater = Updater(model, setup.optimizer)
        self._parameters = dict(model.named_parameters())
        self._used: set[str] = set()
        """The parameters that some rank's pass of the step has used: the others keep no gradient."""
        supports = next(iter(self._codecs.values())).supports
        self._layouts = BucketLayouts(model, partial(supports, setup.topology, world.size))
        self._frozen: tuple[Layout, ...] | None = None
        self._pass: BackwardPass | None = None

    def _bucket_ready(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Starts a bucket's synchronization; called by DistributedDataParallel. The returned future is
        already complete, so that the pass continues; the means replace the gradients later."""
        if self._pass is not None:
            starts, layouts, synchronize = self._pass
            layout, number = self._layouts.of(bucket), len(layouts)
            layouts.append(layout)
            make = partial(synchronize, layout, number)
            starts.start(make, bucket.buffer(), layout, is_last=bucket.is_last())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _warm_up_passes(self, batches: MicroBatches, passes: int) -> None:
        for index in range(passes):
            programs = {rank: partial(self._settle, -1 - index, batches[rank]) for rank in self._codecs}
            self._world.run_step(-1 - index, programs)
        self._frozen = None
        self._world.run_step(-1, {rank: partial(self._warm_up_rank, batches[rank]) for rank in self._codecs})
        self._updater.warm_up()

    async def _settle(self, step: int, batches: Sequence[Batch], rank_step: RankStep) -> None:
        """Makes a pass whose gradients are not used, so that DDP settles its buckets; any rank's batches will
        do."""
        rank_step.replicated(partial(self._forward_backward, step, batches, rank_step.rank))

    async def _warm_up_rank(self, batches: Sequence[Batch], rank_step: RankStep) -> None:
        passed, _ = self._run_pass(-1, batches, rank_step, measured=False)
        await self._take_means(passed, rank_step)

    def _forward_backward(self, step: int, batches: Sequence[Batch], rank: int) -> Tensor:
        self._prepared.zero_grad(set_to_none=True)
        return super()._forward_backward(step, batches, rank)

    def _run_pass(
        self, step: int, batches: Sequence[Batch], rank_step: RankStep, *, measured: bool
    ) -> tuple[BackwardPass, Tensor]:
        """Runs a rank's pass and starts its buckets; returns these and the mean loss of its micro-batches."""
        rank = rank_step.rank
        codec = self._codecs[rank]

        def synchronize(layout: Layout, bucket: int, x: Tensor) -> Collective[Tensor]:
            this_round, order = self._round(step, layout, rank, bucket), self._layouts.in_memory(layout)
            return synchronization(codec, x, this_round, self._setup.check_hashes, order=order)

        self._buffers.load(rank)
        with rank_step.compute(passes_until(0)) as computing:
            in_turn = codec.traits.uses_backend
            starts = StartedBuckets(rank_step, measured, computing, in_turn=in_turn, has_one_result=True)
            self._pass = passed = BackwardPass(starts, [], synchronize)
            try:
                loss = self._forward_backward(step, batches, rank)
            finally:
                self._pass = None
        self._used |= {name for name, each in self._parameters.items() if each.grad is not None}
        layouts = tuple(passed.layouts)
        if self._frozen is None:
            self._frozen = layouts
        elif layouts != self._frozen:
            raise RuntimeError(f"the buckets of step {step} differ from those after warm-up")
        return passed, loss

    async def _take_means(self, passed: BackwardPass, rank_step: RankStep) -> list[Tensor]:
        """Waits for all buckets and writes their means into the gradients."""
        means = []
        for layout, started in zip(passed.layouts, passed.starts.started, strict=True):
            means.append(await started)
            rank_step.replicated(partial(self._set_gradients, layout, means[-1]))
        return means

    def _set_gradients(self, layout: Layout, mean: Tensor) -> None:
        for name, own in self._layouts.in_memory(layout).views(mean):
            parameter = self._parameters[name]
            if name in self._used:
                if parameter.grad is None:  # another rank has used it
                    parameter.grad = own.clone()
                else:
                    parameter.grad.copy_(own)

    def layout(self, rank: int) -> tuple[Layout, ...]:
        assert self._frozen is not None, "layout() before warm_up()"
        return self._frozen

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        self._used.clear()
        return super().step(step, batches, learning_rate, measured)

    def _unused(self) -> Collection[str]:
        return self._parameters.keys() - self._used

    async def _step_of_rank(
        self, step: int, batches: Sequence[Batch], rate: float, measured: bool, rank_step: RankStep
    ) -> RankOutcome:
        passed, loss = self._run_pass(step, batches, rank_step, measured=measured)
        means = await self._take_means(passed, rank_step)
        await rank_step.barrier()
        with rank_step.compute(UPDATE):
            norm = rank_step.replicated(partial(self._updater.apply, rate))
        buckets = zip(passed.layouts, passed.starts.started, means, strict=True) if measured else ()
        copies = [
            self._layouts.in_memory(layout).measured(started.input, mean) for layout, started, mean in buckets
        ]
        return RankOutcome(loss, norm, copies)


def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds data parallelism in `world`."""
    options = dataclasses.asdict(setup.parallel)
    del options["name"]
    return DataParallel(setup, model, accelerator, world, wrap(model, accelerator, **options))
