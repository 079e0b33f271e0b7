"""Data parallelism: every rank holds the whole model; buckets are synchronized while backward runs on.

Accelerate gives device and precision, DistributedDataParallel the buckets, its hook the moments at which they
are ready, and the world the ranks: one in this process, or all of them.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.world.interface import Computing, RankStep, Started, World
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.codec_steps import end_codecs
from gradwire.harness.parallel.gradient_error import GradientError, MeasuredBucket, gather_raw, gradient_error
from gradwire.harness.parallel.interface import (
    Batch,
    MicroBatches,
    Parallelism,
    ParallelSetup,
    ReadPart,
    StepOutcome,
)
from gradwire.harness.parallel.passes import forward_backward, settling_passes, wrap
from gradwire.harness.parallel.replicas import Replicas
from gradwire.harness.parallel.settings import DataParallelConfig
from gradwire.harness.parallel.state import Snapshot, codec_state, load_state, replicated_state
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.parallel.update import Updater
from gradwire.harness.timing.trace.step import UPDATE, passes_until


class Bucket(NamedTuple):
    """A bucket of one rank's pass, under way."""

    layout: Layout
    mean: Started[Tensor]


class Pass:
    """One rank's forward and backward pass: starts the synchronization of each bucket as it gets ready."""

    def __init__(
        self,
        rank_step: RankStep,
        computing: Computing,
        layouts: BucketLayouts,
        synchronize: Callable[[Layout, int, Tensor], Any],
        *,
        in_turn: bool,
        measured: bool,
    ) -> None:
        self._rank_step, self._computing, self._layouts = rank_step, computing, layouts
        self._synchronize, self._in_turn, self._measured = synchronize, in_turn, measured
        self.buckets: list[Bucket] = []

    def add(self, bucket: GradBucket) -> None:
        layout = self._layouts.of(bucket)
        if bucket.is_last():
            self._computing.end()
        mean: Started[Tensor] = self._rank_step.start(
            partial(self._synchronize, layout, len(self.buckets)),
            bucket.buffer(),
            buffers=str(layout.uid),
            coordinates=layout.numel,
            in_turn=self._in_turn,
            has_one_result=True,
            keeps_input=self._measured,
        )
        self.buckets.append(Bucket(layout, mean))
        self._computing.label = passes_until(len(self.buckets))


class RankOutcome(NamedTuple):
    """What a rank says of its step."""

    loss: Tensor
    grad_norm: Tensor
    copies: list[MeasuredBucket]


class DataParallel(Replicas):
    """One optimizer and set of buckets for all of the world's ranks here."""

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        options = dataclasses.asdict(setup.parallel)
        del options["name"]
        self._ddp = wrap(model, accelerator, **options)
        super().__init__(setup, model, accelerator, world)
        self._ddp.register_comm_hook(None, self._bucket_ready)
        self.settling_passes = settling_passes(self._ddp)
        self._updater = Updater(model, setup.optimizer)
        self._parameters = dict(model.named_parameters())
        self._used: set[str] = set()
        """The parameters that some rank's pass of the step has used: the others keep no gradient."""
        supports = next(iter(self._codecs.values())).supports
        self._layouts = BucketLayouts(model, partial(supports, setup.topology, world.size))
        self._frozen: tuple[Layout, ...] | None = None
        self._pass: Pass | None = None
        self._copies: dict[int, list[MeasuredBucket]] = {}

    def _bucket_ready(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DistributedDataParallel calls this for each bucket. It is told that the bucket is synchronized, and
        goes on; the means take the places of the gradients once they are there."""
        if self._pass is not None:
            self._pass.add(bucket)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        snapshot = Snapshot(self._model, self._codecs)
        for index in range(passes):
            programs = {rank: partial(self._settle, -1 - index, batches[rank]) for rank in self._codecs}
            self._world.run_step(-1 - index, programs)
        found = self._world.run_step(
            -1, {rank: partial(self._warm_up_rank, batches[rank]) for rank in self._codecs}
        )
        self._frozen = next(iter(found.results.values()))
        end_codecs(self._world, self._codecs, -1)
        self._updater.warm_up()
        self._buffers.watch(snapshot.buffers)
        snapshot.restore(self._model, self._codecs)
        self._buffers.begin()
        self._world.forget()

    async def _settle(self, step: int, batches: Sequence[Batch], rank_step: RankStep) -> None:
        """A pass whose gradients nobody uses: it settles the buckets, whoever makes it."""
        rank_step.replicated(partial(self._forward_backward, step, batches, rank_step.rank))

    async def _warm_up_rank(self, batches: Sequence[Batch], rank_step: RankStep) -> tuple[Layout, ...]:
        passed, _ = self._run_pass(-1, batches, rank_step, measured=False)
        await self._take_means(passed, rank_step)
        return tuple(bucket.layout for bucket in passed.buckets)

    def _forward_backward(self, step: int, batches: Sequence[Batch], rank: int) -> Tensor:
        self._ddp.zero_grad(set_to_none=True)
        return forward_backward(self._ddp, self._accelerator, batches, self._setup.seed, step, rank)

    def _run_pass(
        self, step: int, batches: Sequence[Batch], rank_step: RankStep, *, measured: bool
    ) -> tuple[Pass, Tensor]:
        """A rank's pass, its buckets under way, and the mean loss of its micro-batches."""
        rank = rank_step.rank
        codec = self._codecs[rank]

        def synchronize(layout: Layout, bucket: int, x: Tensor) -> Any:
            this_round = Round(step, layout, rank, self._world.size, self._setup.seed, bucket)
            order = self._layouts.in_memory(layout)
            return synchronization(codec, x, this_round, self._setup.check_hashes, order=order)

        self._buffers.load(rank)
        with rank_step.compute(passes_until(0)) as computing:
            self._pass = passed = Pass(
                rank_step,
                computing,
                self._layouts,
                synchronize,
                in_turn=codec.traits.uses_backend,
                measured=measured,
            )
            try:
                loss = self._forward_backward(step, batches, rank)
            finally:
                self._pass = None
        self._used |= {name for name, each in self._parameters.items() if each.grad is not None}
        return passed, loss

    async def _take_means(self, passed: Pass, rank_step: RankStep) -> list[Tensor]:
        """Waits for all buckets and puts their means into the places of the gradients."""
        means = []
        for layout, mean in passed.buckets:
            means.append(await mean)
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
        self._copies.clear()
        update = partial(self._updater.apply, learning_rate)
        ended = self._world.run_step(
            step,
            {rank: partial(self._step_of_rank, step, batches[rank], update, measured) for rank in batches},
        )
        ranks = ended.results
        first = next(iter(ranks.values()))
        self._copies = {rank: own.copies for rank, own in ranks.items()}
        norm, *values = read_together([first.grad_norm, *(own.loss for own in ranks.values())])
        losses, skipped = dict(zip(ranks, values, strict=True)), not math.isfinite(norm)
        unused = self._parameters.keys() - self._used
        logged, decision = end_codecs(self._world, self._codecs, step, skipped=skipped, unused=unused)
        return StepOutcome(losses, norm, skipped, ended.simulated_s, logged, decision)

    async def _step_of_rank(
        self,
        step: int,
        batches: Sequence[Batch],
        update: Callable[[], Tensor],
        measured: bool,
        rank_step: RankStep,
    ) -> RankOutcome:
        passed, loss = self._run_pass(step, batches, rank_step, measured=measured)
        if tuple(bucket.layout for bucket in passed.buckets) != self._frozen:
            raise RuntimeError(f"the buckets of step {step} differ from those after warm-up")
        means = await self._take_means(passed, rank_step)
        await rank_step.barrier()
        with rank_step.compute(UPDATE):
            norm = rank_step.replicated(update)
        pairs = zip(passed.buckets, means, strict=True) if measured else ()
        copies = [
            self._layouts.in_memory(bucket.layout).measured(bucket.mean.input, mean) for bucket, mean in pairs
        ]
        return RankOutcome(loss, norm, copies)

    def gradient_error(self) -> GradientError:
        return gradient_error(self._world, self._copies)

    def raw_gradients(self) -> Tensor:
        return gather_raw(self._world, self._copies)

    def raw_buckets(self, rank: int) -> list[Tensor]:
        return [copy.read_raw() for copy in self._copies[rank]]

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        own = codec_state(self._codecs)
        return own if 0 not in self._codecs else own | replicated_state(self._model, self._updater)

    def load_state_dict(self, read: ReadPart) -> None:
        load_state(read, self._model, self._updater, self._codecs)
        self._buffers.begin()


def read_together(values: Sequence[Tensor]) -> list[float]:
    """Scalars, read from the device in one copy: the host waits once a step."""
    found: list[float] = torch.stack([value.detach().double() for value in values]).tolist()
    return found


def supports(setup: ParallelSetup) -> str | None:
    """Returns None, or the reason why such a run is impossible, in one line with the fix."""
    assert isinstance(setup.parallel, DataParallelConfig)
    if setup.parallel.static_graph and setup.accumulation > 1:
        return (
            "parallel.static_graph=true cannot be combined with train.accumulation="
            f"{setup.accumulation}: DistributedDataParallel loses gradients; use static_graph=false"
        )
    made = make_codec(**setup.codec)
    reason = made.supports_stages(1)
    if reason is not None:
        return reason
    # The buckets are not known yet; they are asked about again after warm-up.
    bucket = Layout.flat(1 << 20, device=setup.device)
    reason = made.supports(setup.topology, setup.workers, bucket)
    if reason is None:
        return None
    codec = f"codec={setup.codec['name']}"
    said = reason if reason.startswith(codec) else f"{codec}: {reason}"
    return f"{said}; given are cluster.workers={setup.workers} and topology={setup.topology}"


def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds data parallelism in `world`."""
    return DataParallel(setup, model, accelerator, world)
