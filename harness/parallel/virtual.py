"""Data parallelism with every worker in this process: one model, n gradients, one update.

All replicas are bit-identical, so one model serves them all. The workers' passes run one after another, and
one hook collects their buckets (DDP at world size one has the same bucket layout). Then all ranks synchronize
bucket after bucket, and the simulated clock says how long the step takes.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.gradient_store import GradientStore, make_store
from gradwire.harness.parallel.interface import GradientError, MicroBatches, ReadPart, StepOutcome
from gradwire.harness.parallel.passes import forward_backward, settling_passes, wrap
from gradwire.harness.parallel.state import Snapshot, codec_state, load_state, replicated_state
from gradwire.harness.parallel.synchronize import (
    MeasuredBucket,
    gather_raw,
    gradient_error,
    synchronization,
)
from gradwire.harness.parallel.update import OptimizerSettings, Updater
from gradwire.harness.runtime.heartbeat import beat

CollectedBucket = tuple[float, Layout]
"""(seconds after the worker's step began, layout); the gradient is in the store"""


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
        check_hashes: bool,
        gradients: str = "auto",
        **ddp: Any,
    ) -> None:
        self.model, self._accelerator, self._world, self._codecs = model, accelerator, world, codecs
        self._seed, self._check_hashes = seed, check_hashes
        self._ddp = wrap(model, accelerator, **ddp)
        self.settling_passes = settling_passes(self._ddp)
        self._ddp.register_comm_hook(None, self._collect)
        self._updater = Updater(model, settings)
        self._parameters = dict(model.named_parameters())
        self._layouts = BucketLayouts(model, partial(codecs[0].supports, topology, world.size))
        self._frozen: tuple[Layout, ...] | None = None
        self._started = 0.0
        self._rank, self._collected = 0, list[CollectedBucket]()
        num_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._store = make_store(gradients, num_bytes * world.size, world.device)
        self._means: list[Tensor] = []

    def _collect(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self._world.synchronize()
        ready = time.perf_counter() - self._started
        x = bucket.buffer()
        self._store.put(self._rank, len(self._collected), x)
        self._collected.append((ready, self._layouts.of(bucket)))
        self._world.synchronize()
        self._started = time.perf_counter() - ready  # keeping gradients is not the worker's computation
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(x)
        return future

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        snapshot = Snapshot(self.model, self._codecs)
        for index in range(passes):  # one worker's passes settle the layout, then all can use it
            self._pass(-1 - index, batches, 0)
        _, buckets = self._passes(-1, batches)
        self._frozen = tuple(layout for _, layout in buckets[0])
        self._synchronize(-1, buckets, False)
        self._end_codec_step(-1, skipped=False)
        self._updater.warm_up()
        self._world.end_step(-1)
        snapshot.restore(self.model, self._codecs)
        self._store.clear()
        self._world.forget_buffers()
        for rank in self._world.ranks:
            self._world.traffic[rank].by_phase.clear()
            self._world.recorders[rank].drain()

    def _pass(self, step: int, batches: MicroBatches, rank: int) -> Tensor:
        """One worker's forward and backward; its gradients are in the store afterwards."""
        self._ddp.zero_grad(set_to_none=True)
        self._rank, self._collected = rank, []
        self._started = time.perf_counter()
        return forward_backward(self._ddp, self._accelerator, batches[rank], self._seed, step, rank)

    def _passes(
        self, step: int, batches: MicroBatches
    ) -> tuple[dict[int, float], dict[int, list[CollectedBucket]]]:
        """Every worker's loss and buckets."""
        self._store.clear()
        before, after = Snapshot(self.model, {}), None
        losses, buckets = {}, {}
        for rank in self._world.ranks:
            before.restore_buffers(self.model)
            losses[rank] = float(self._pass(step, batches, rank))
            buckets[rank] = self._collected
            after = after or Snapshot(self.model, {})  # buffers are rank 0's
        assert after is not None
        after.restore_buffers(self.model)
        return losses, buckets

    def _synchronize(self, step: int, buckets: Mapping[int, list[CollectedBucket]], measured: bool) -> None:
        """Synchronizes bucket after bucket on all ranks and puts the means into the parameters' gradients."""
        self._means = []
        for bucket, (_, layout) in enumerate(buckets[0]):
            beat()
            collectives = {
                rank: (buckets[rank][bucket][0], self._synchronization(step, layout, rank, bucket))
                for rank in self._world.ranks
            }
            # The same on all ranks, as `measure.check_hashes` checks.
            mean = self._world.run_bucket(collectives, layout.numel)[0]
            if measured:
                self._means.append(mean)
            self._set_gradients(layout, mean)

    def _synchronization(self, step: int, layout: Layout, rank: int, bucket: int) -> Collective[Tensor]:
        this_round = Round(step, layout, rank, self._world.size, self._seed, bucket)
        x = self._store.get(rank, bucket)
        return synchronization(self._codecs[rank], x, this_round, self._check_hashes)

    def _set_gradients(self, layout: Layout, mean: Tensor) -> None:
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            parameter = self._parameters[name]
            assert parameter.grad is not None
            parameter.grad.copy_(mean[offset : offset + parameter.numel()].view(shape))

    def _end_codec_step(self, step: int, skipped: bool) -> Mapping[str, float]:
        codecs = [self._codecs[rank] for rank in self._world.ranks]
        logged = [codec.skip_step(step) if skipped else codec.end_step(step) for codec in codecs]
        return logged[0]

    def layout(self) -> tuple[Layout, ...]:
        assert self._frozen is not None, "layout() before warm_up()"
        return self._frozen

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        losses, buckets = self._passes(step, batches)
        if tuple(layout for _, layout in buckets[0]) != self._frozen:
            raise RuntimeError(f"the buckets of step {step} differ from those after warm-up")
        self._synchronize(step, buckets, measured)
        start = time.perf_counter()
        norm, skipped = self._updater.apply(learning_rate)
        self._world.synchronize()
        timed = self._world.end_step(step, time.perf_counter() - start)
        end = max(trace.end for trace in timed.values())
        return StepOutcome(losses, norm, skipped, end, self._end_codec_step(step, skipped))

    def gradient_error(self) -> GradientError:
        return gradient_error(self._world, self._copies())

    def raw_gradients(self) -> Tensor:
        return gather_raw(self._world, self._copies())

    def _copies(self) -> dict[int, Sequence[MeasuredBucket]]:
        return {rank: _Copies(self._store, self._means, rank) for rank in self._world.ranks}

    def finish(self) -> None:
        """Nothing is pending: a step ends with its update."""

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return codec_state(self._codecs) | replicated_state(self.model, self._updater)

    def load_state_dict(self, read: ReadPart) -> None:
        load_state(read, self.model, self._updater, self._codecs)


class _Copies(Sequence[MeasuredBucket]):
    """One rank's raw buckets and their means, read as they are asked for."""

    def __init__(self, store: GradientStore, means: Sequence[Tensor], rank: int) -> None:
        self._store, self._means, self._rank = store, means, rank

    def __len__(self) -> int:
        return len(self._means)

    def __getitem__(self, bucket: Any) -> Any:
        return MeasuredBucket(self._store.get(self._rank, bucket), self._means[bucket])
