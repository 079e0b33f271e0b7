"""Data parallelism with every worker in this process: one model, n gradients, one update.

All replicas are bit-identical, so one model serves them all: the workers' passes run one after
another, their buckets are collected from the same hook (DDP over a world of one has the same bucket
layout), then all ranks' collectives run under the simulated clock.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.interface import GradientError, MicroBatches, ReadPart, StepOutcome
from gradwire.harness.parallel.passes import forward_backward, wrap
from gradwire.harness.parallel.snapshot import Snapshot
from gradwire.harness.parallel.state import codec_state, load_state, replicated_state
from gradwire.harness.parallel.synchronize import (
    MeasuredBucket,
    gather_raw,
    gradient_error,
    synchronization,
)
from gradwire.harness.parallel.update import OptimizerSettings, Updater
from gradwire.harness.world.virtual import VirtualWorld

CollectedBucket = tuple[float, Layout, Tensor]
"""(seconds after the worker's step began, layout, gradient)"""


class VirtualDataParallel:
    """The virtual cluster's `parallel=ddp`; `codecs` holds one instance per rank."""

    def __init__(
        self,
        model: nn.Module,
        accelerator: Accelerator,
        world: VirtualWorld,
        codecs: Mapping[int, Codec],
        settings: OptimizerSettings,
        *,
        topology: str,
        seed: int,
        overlap: bool,
        check_hashes: bool,
        **ddp: Any,
    ) -> None:
        self.model, self._accelerator, self._world, self._codecs = model, accelerator, world, codecs
        self._seed, self._overlap, self._check_hashes = seed, overlap, check_hashes
        self._ddp = wrap(model, accelerator, **ddp)
        self._ddp.register_comm_hook(None, self._collect)
        self._updater = Updater(model, settings)
        self._parameters = dict(model.named_parameters())
        self._layouts = BucketLayouts(model, partial(codecs[0].supports, topology, world.size))
        self._frozen: tuple[Layout, ...] | None = None
        self._started = 0.0
        self._collected: list[CollectedBucket] = []
        self._copies: dict[int, list[MeasuredBucket]] = {}

    def _collect(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self._world.synchronize()
        ready = time.perf_counter() - self._started
        x = bucket.buffer()
        self._collected.append((ready, self._layouts.of(bucket), x.clone()))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(x)
        return future

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        snapshot = Snapshot(self.model, self._codecs)
        for index in range(passes):  # one worker's passes settle the layout, then all can use it
            self._collected = []
            forward_backward(self._ddp, self._accelerator, batches[0], self._seed, -1 - index, 0)
        _, buckets, _ = self._passes(-1, batches)
        self._frozen = tuple(layout for _, layout, _ in buckets[0])
        self._synchronize(-1, buckets, False)
        self._end_codec_step(-1)
        self._updater.warm_up()
        snapshot.restore(self.model, self._codecs)
        self._world.forget_buffers()
        for rank in self._world.ranks:
            self._world.traffic[rank].by_phase.clear()
            self._world.recorders[rank].drain()

    def _passes(
        self, step: int, batches: MicroBatches
    ) -> tuple[dict[int, float], dict[int, list[CollectedBucket]], float]:
        """Every worker's loss and buckets, and the longest worker's seconds of computation."""
        before, after = Snapshot(self.model, {}), None
        losses, buckets, longest = {}, {}, 0.0
        for rank in self._world.ranks:
            before.restore_buffers(self.model)
            self._ddp.zero_grad(set_to_none=True)
            self._collected = []
            self._started = time.perf_counter()
            loss = forward_backward(self._ddp, self._accelerator, batches[rank], self._seed, step, rank)
            losses[rank] = float(loss)
            buckets[rank] = self._collected
            ends = [0.0, *(ready for ready, _, _ in self._collected)]
            for start, end in zip(ends, ends[1:], strict=False):
                self._world.recorders[rank].add("compute", start, end)
            longest = max(longest, ends[-1])
            after = after or Snapshot(self.model, {})  # buffers are rank 0's
        assert after is not None
        after.restore_buffers(self.model)
        return losses, buckets, longest

    def _synchronize(self, step: int, buckets: Mapping[int, list[CollectedBucket]], measured: bool) -> None:
        """Synchronize all buckets on all ranks and put the means into the parameters' gradients."""
        collectives = {}
        for rank in self._world.ranks:
            last = buckets[rank][-1][0]
            collectives[rank] = [
                (
                    ready if self._overlap else last,
                    str(layout.uid),
                    synchronization(
                        self._codecs[rank],
                        x,
                        Round(step, layout, rank, self._world.size, self._seed, bucket),
                        self._check_hashes,
                    ),
                )
                for bucket, (ready, layout, x) in enumerate(buckets[rank])
            ]
        means = self._world.run_step(collectives)
        if measured:
            self._copies = {
                rank: [
                    MeasuredBucket(x, mean)
                    for (_, _, x), mean in zip(buckets[rank], means[rank], strict=True)
                ]
                for rank in self._world.ranks
            }
        for (_, layout, _), mean in zip(buckets[0], means[0], strict=True):
            self._set_gradients(layout, mean)

    def _set_gradients(self, layout: Layout, mean: Tensor) -> None:
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            parameter = self._parameters[name]
            assert parameter.grad is not None
            parameter.grad.copy_(mean[offset : offset + parameter.numel()].view(shape))

    def _end_codec_step(self, step: int) -> Mapping[str, float]:
        logged = [self._codecs[rank].end_step(step) for rank in self._world.ranks]
        return logged[0]

    def layout(self) -> tuple[Layout, ...]:
        assert self._frozen is not None, "layout() before warm_up()"
        return self._frozen

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        losses, buckets, compute_s = self._passes(step, batches)
        if tuple(layout for _, layout, _ in buckets[0]) != self._frozen:
            raise RuntimeError(f"the buckets of step {step} differ from those after warm-up")
        self._synchronize(step, buckets, measured)
        synchronized = max(compute_s, *self._world.end_s.values())
        start = time.perf_counter()
        norm, skipped = self._updater.apply(learning_rate)
        self._world.synchronize()
        end = synchronized + time.perf_counter() - start
        for rank in self._world.ranks:
            self._world.recorders[rank].add("compute", synchronized, end)
        return StepOutcome(losses, norm, skipped, end, self._end_codec_step(step))

    def gradient_error(self) -> GradientError:
        return gradient_error(self._world, self._copies)

    def raw_gradients(self) -> Tensor:
        return gather_raw(self._world, self._copies)

    def finish(self) -> None:
        """Nothing is pending: a step ends with its update."""

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return codec_state(self._codecs) | replicated_state(self.model, self._updater)

    def load_state_dict(self, read: ReadPart) -> None:
        load_state(read, self.model, self._updater, self._codecs)
