"""The DDP communication hook: hands each bucket to the communication thread as it gets ready."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.synchronize import MeasuredBucket, synchronization
from gradwire.harness.world.process import ProcessWorld


class Synchronizer:
    """The state behind one model's hook.

    Used through `gradwire.attach` it counts steps by itself; a trainer sets `step`, asks for copies
    with `measured`, and freezes the layout after its warm-up.
    """

    def __init__(
        self,
        world: ProcessWorld,
        codec: Codec,
        layouts: BucketLayouts,
        *,
        seed: int = 0,
        overlap: bool = True,
        check_hashes: bool = False,
    ) -> None:
        self.world, self.codec = world, codec
        self.step, self.measured = 0, False
        self.layouts: list[Layout] = []
        """The buckets of the latest step, in order."""
        self.copies: dict[int, MeasuredBucket] = {}
        self.frozen: tuple[Layout, ...] | None = None
        self.on_bucket: Callable[[], None] | None = None
        """Called as each bucket gets ready."""
        self._bucket_layouts, self._seed = layouts, seed
        self._overlap, self._check_hashes = overlap, check_hashes
        self._held_back: list[Callable[[], None]] = []
        self._step_open = False

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP calls this for each bucket, in bucket order; the future holds the mean."""
        index, layout = bucket.index(), self._bucket_layouts.of(bucket)
        if index == 0:
            self.end_step()
            self.layouts, self.copies = [], {}
            self._held_back.clear()  # of a backward pass that did not end
        self.layouts.append(layout)
        if self.frozen is not None and not self._as_frozen(bucket.is_last()):
            raise RuntimeError(f"bucket {index} of step {self.step} differs from the one after warm-up")
        future = self._start(index, bucket.buffer(), layout)
        if self.on_bucket is not None:
            self.on_bucket()
        if self._overlap or bucket.is_last():
            while self._held_back:
                self._held_back.pop(0)()
        self._step_open = True
        return future

    def end_step(self, skipped: bool = False) -> Mapping[str, float]:
        """Tell the codec that the step's buckets are all synchronized; returns what it logs.

        `skipped`, the same on all ranks: the means are not used, so the codec is to take back what it has
        learned from them. Without a trainer the next step's first bucket ends the step, as one that counts.
        """
        if not self._step_open:
            return {}
        self._step_open = False
        logged = self.codec.skip_step(self.step) if skipped else self.codec.end_step(self.step)
        self.step += 1
        return logged

    def _as_frozen(self, is_last: bool) -> bool:
        assert self.frozen is not None
        so_far = tuple(self.layouts)
        return so_far == (self.frozen if is_last else self.frozen[: len(so_far)])

    def _start(self, index: int, x: Tensor, layout: Layout) -> torch.futures.Future[Tensor]:
        world = self.world
        devices: list[int | str | torch.device] | None = (
            [world.device] if world.device.type == "cuda" else None
        )
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        round = Round(self.step, layout, world.rank, world.size, self._seed, index)
        collective = synchronization(self.codec, x, round, self._check_hashes)
        sink: object = future
        if self.measured:
            sink = _CopyingFuture(future, x.clone(), index, self.copies)
        in_turn = self.codec.one_at_a_time
        submit = partial(world.submit, one_at_a_time=in_turn, coordinates=layout.numel)
        self._held_back.append(lambda: submit(collective, str(layout.uid), sink))
        return future

    def raise_error(self) -> None:
        """Raise what went wrong on a communication thread: DDP itself shows only a cast error."""
        if self.world.error is not None:
            raise self.world.error


class _CopyingFuture:
    """Keeps copies of the raw and the synchronized bucket before it fulfils the future."""

    def __init__(
        self, future: torch.futures.Future[Tensor], raw: Tensor, index: int, copies: dict[int, MeasuredBucket]
    ) -> None:
        self._future, self._raw, self._index, self._copies = future, raw, index, copies

    def set_result(self, mean: Tensor) -> None:
        self._copies[self._index] = MeasuredBucket(self._raw, mean.clone())
        self._future.set_result(mean)

    def set_exception(self, error: BaseException) -> None:
        self._future.set_exception(error)  # type: ignore[arg-type]
