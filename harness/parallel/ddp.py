"""Data parallelism over real processes: Accelerate, DistributedDataParallel and our hook."""

from __future__ import annotations

from functools import partial
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.interface import Codec, Layout
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.hook import BucketHook
from gradwire.harness.parallel.interface import GradientError, MicroBatches, ReadPart, StepOutcome
from gradwire.harness.parallel.passes import forward_backward, settling_passes, wrap
from gradwire.harness.parallel.state import Snapshot, codec_state, load_state, replicated_state
from gradwire.harness.parallel.synchronize import MeasuredBucket, gather_raw, gradient_error
from gradwire.harness.parallel.update import OptimizerSettings, Updater


class DataParallel:
    """One replica per process; buckets are synchronized by the codec while backward runs on."""

    def __init__(
        self,
        model: nn.Module,
        accelerator: Accelerator,
        world: ProcessWorld,
        codec: Codec,
        settings: OptimizerSettings,
        *,
        topology: str,
        seed: int,
        overlap: bool,
        check_hashes: bool,
        **ddp: Any,
    ) -> None:
        self.model, self._accelerator, self._world, self._seed = model, accelerator, world, seed
        self._ddp = wrap(model, accelerator, **ddp)
        self.settling_passes = settling_passes(self._ddp)
        self._updater = Updater(model, settings)
        self._recorder = world.recorders[world.rank]
        self._computing: Any = None
        self._hook = BucketHook(
            world,
            codec,
            BucketLayouts(model, partial(codec.supports, topology, world.size)),
            seed=seed,
            overlap=overlap,
            check_hashes=check_hashes,
        )
        self._hook.on_bucket = self._gradients_ready
        self._ddp.register_comm_hook(None, self._hook.hook)

    def _gradients_ready(self) -> None:
        """Records computation from the first forward to the last gradient, one span per bucket."""
        now = self._recorder.timestamp()
        self._recorder.add("compute", self._computing, now)
        self._computing = now

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        codec = self._hook.codec
        snapshot = Snapshot(self.model, {self._world.rank: codec})
        for index in range(passes):
            self._pass(-1 - index, batches)
            self._hook.end_step()
            self._updater.warm_up()
        snapshot.restore(self.model, {self._world.rank: codec})
        self._hook.frozen = tuple(self._hook.layouts)
        self._world.forget_buffers()
        self._world.traffic[self._world.rank].by_phase.clear()
        self._recorder.drain()
        self._world.take_notes()

    def _pass(self, step: int, batches: MicroBatches) -> Tensor:
        """Forward, backward and synchronization; the codec has yet to be told how the step ends."""
        self._hook.step = step
        self._computing = self._recorder.timestamp()
        rank = self._world.rank
        try:
            return forward_backward(self._ddp, self._accelerator, batches[rank], self._seed, step, rank)
        except RuntimeError:
            self._hook.raise_error()
            raise

    def layout(self) -> tuple[Layout, ...]:
        assert self._hook.frozen is not None, "layout() before warm_up()"
        return self._hook.frozen

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        self._hook.measured = measured
        loss = self._pass(step, batches)
        start = self._recorder.timestamp()
        norm, skipped = self._updater.apply(learning_rate)
        self._recorder.add("compute", start, self._recorder.timestamp())
        logged = self._hook.end_step(skipped)
        return StepOutcome({self._world.rank: float(loss)}, norm, skipped, None, logged)

    def gradient_error(self) -> GradientError:
        return gradient_error(self._world, self._copies())

    def raw_gradients(self) -> Tensor:
        return gather_raw(self._world, self._copies())

    def _copies(self) -> dict[int, list[MeasuredBucket]]:
        copies = self._hook.copies
        return {self._world.rank: [copies[index] for index in sorted(copies)]}

    def finish(self) -> None:
        """Nothing is pending, because backward returns when every bucket is synchronized."""

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        own = codec_state({self._world.rank: self._hook.codec})
        return own if self._world.rank else own | replicated_state(self.model, self._updater)

    def load_state_dict(self, read: ReadPart) -> None:
        load_state(read, self.model, self._updater, {self._world.rank: self._hook.codec})
