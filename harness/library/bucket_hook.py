"""The DDP communication hook, which hands each bucket to the communication threads when it gets ready."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.gradient_error import MeasuredBucket
from gradwire.harness.parallel.synchronize import synchronization


class SynchronizationError(RuntimeError):
    """A bucket could not be synchronized. The text says on which rank, in which step, and why; the
    `__cause__` is what a communication thread or a codec has raised."""


class PendingBuckets:
    """The buckets of one backward pass: how many are not synchronized yet, and the first failure."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._error: BaseException | None = None
        self._futures: list[torch.futures.Future[Tensor]] = []

    def add(self, future: torch.futures.Future[Tensor]) -> None:
        with self._changed:
            self._count += 1
            self._futures.append(future)

    def settle(self, error: BaseException | None = None) -> None:
        """Records that a bucket is synchronized or has failed."""
        with self._changed:
            self._count -= 1
            self._error = self._error or error
            self._changed.notify_all()

    def wait_until_synchronized(self) -> BaseException | None:
        """Waits until every bucket is synchronized or one has failed; returns the failure. On CUDA the
        messages are then under way, and the current stream waits for them."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._count)
            if self._error is not None:
                return self._error
        for future in self._futures:
            future.wait()
        return None


class _Sink:
    """Where a bucket's outcome goes: DDP's future, the pending buckets, and the copies if `raw` is given."""

    def __init__(
        self,
        future: torch.futures.Future[Tensor],
        pending: PendingBuckets,
        raw: Tensor | None,
        keep: Callable[[MeasuredBucket], None],
    ) -> None:
        self._future, self._pending, self._raw, self._keep = future, pending, raw, keep

    def set_result(self, mean: Tensor) -> None:
        if self._raw is not None:
            self._keep(MeasuredBucket(partial(_same, self._raw), mean.clone()))
        self._future.set_result(mean)
        self._pending.settle()

    def set_exception(self, error: BaseException) -> None:
        self._pending.settle(error)
        # torch's future takes an Exception only; a thread may also have been told to exit.
        plain = error if isinstance(error, Exception) else RuntimeError(repr(error))
        self._future.set_exception(plain)  # type: ignore[arg-type]


def _same(x: Tensor) -> Tensor:
    return x


def in_words(error: BaseException) -> str:
    """The text of an error, after its type if the error is not ours."""
    words = str(error) or "no reason given"
    return words if isinstance(error, RuntimeError) else f"{type(error).__name__}: {words}"


class BucketHook:
    """What one model's hook remembers between its calls.

    `Synchronizer` asks for copies with `measured`, and is called at the end of each pass.
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
        self.on_end: Callable[[], None] | None = None
        """Called within the backward pass once all its buckets are synchronized."""
        self.explain: Callable[[BaseException], str] = in_words
        """The text of an error that ends a backward pass."""
        self.on_failure: Callable[[SynchronizationError], None] | None = None
        """Called within a backward pass that fails, with what that raises. None: what the hook itself refuses
        is raised as it is."""
        self.delayed = False
        """Whether the next pass is the first of a static graph, after which DDP hands over all buckets at
        once."""
        self.bucket_layouts, self._seed = layouts, seed
        self._overlap, self._check_hashes = overlap, check_hashes
        self._held_back: list[Callable[[], None]] = []
        self.announced: list[Layout] = []
        self._pending = PendingBuckets()
        self.step_open = False
        """Whether a step has been synchronized and the codec has not been told yet that it has ended."""

    @property
    def steps(self) -> int:
        """The number of steps synchronized so far."""
        return self.step + self.step_open

    def restart(self, step: int) -> None:
        """Makes the next pass step number `step`, whatever came before."""
        self.step, self.step_open = step, False

    def announce(self, layouts: Sequence[Layout]) -> None:
        """Gives the buckets of the next pass, in order, if it is a `delayed` one: DDP then calls each of them
        the first bucket, with that bucket's parameters."""
        self.announced, self.layouts = list(layouts), []

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP calls this for each bucket, in bucket order; the future holds the mean."""
        try:
            return self._take(bucket)
        except SynchronizationError:
            raise
        except Exception as error:
            if self.on_failure is None:
                raise
            raise self.fail(error) from error

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model with a codec cannot be pickled or copied; save model.module.state_dict(), or first call "
            "detach() on what gradwire.attach() returned"
        )

    def fail(self, error: BaseException) -> SynchronizationError:
        """Returns the error to raise because of `error`, which ends the synchronization."""
        where = f"rank {self.world.rank}, step {self.step}"
        failure = SynchronizationError(f"{where}: {self.explain(error)}")
        failure.__cause__ = error
        if self.on_failure is not None:
            self.on_failure(failure)
        return failure

    def _take(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if self.world.closed:
            raise RuntimeError(
                "the connections to the other ranks have been closed; call detach() on what "
                "gradwire.attach() returned to train on without a codec"
            )
        index, layout, is_last = self._identify(bucket)
        if index == 0:
            self.end_step()
            self.layouts, self.copies, self._pending = [], {}, PendingBuckets()
            self._held_back.clear()  # of a backward pass that did not end
        self.layouts.append(layout)
        future = self._start(index, bucket.buffer(), layout)
        if self._overlap or is_last:
            while self._held_back:
                self._held_back.pop(0)()
        if is_last:
            self._end_with_backward()
        return future

    def end_step(self, skipped: bool = False) -> Mapping[str, float]:
        """Tells the codec that the step's buckets are all synchronized; returns what it logs.

        `skipped`, the same on all ranks, says that the means are not used, so the codec takes back what it
        has learned from them. The next step's first bucket ends the step as one that counts.
        """
        if not self.step_open:
            return {}
        self.step_open = False
        end = self.codec.end_step
        if skipped:  # codecs from outside may not know of it
            end = getattr(self.codec, "skip_step", end)
        logged = end(self.step)
        self.step += 1
        return logged

    def _identify(self, bucket: GradBucket) -> tuple[int, Layout, bool]:
        """A bucket's number, its layout, and whether it is the pass's last."""
        if not self.announced:
            return bucket.index(), self.bucket_layouts.of(bucket), bucket.is_last()
        index, found = len(self.layouts), bucket.buffer().numel()
        layout = self.announced[index]
        if layout.numel != found:
            raise RuntimeError(f"bucket {index} has {found} coordinates, not {layout.numel}")
        is_last = index == len(self.announced) - 1
        if is_last:
            self.announced = []
        return index, layout, is_last

    def _start(self, index: int, x: Tensor, layout: Layout) -> torch.futures.Future[Tensor]:
        world = self.world
        devices: list[int | str | torch.device] | None = (
            [world.device] if world.device.type == "cuda" else None
        )
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        this_round = Round(self.step, layout, world.rank, world.size, self._seed, index)
        collective = synchronization(self.codec, x, this_round, self._check_hashes)
        self._pending.add(future)
        raw = x.clone() if self.measured else None
        sink = _Sink(future, self._pending, raw, partial(self.copies.__setitem__, index))
        in_turn = self.codec.traits.uses_backend
        submit = partial(world.submit, one_at_a_time=in_turn, coordinates=layout.numel)
        self._held_back.append(lambda: submit(collective, str(layout.uid), sink))
        return future

    def _end_with_backward(self) -> None:
        """Has `_end_pass` called when the backward pass ends, before DDP takes the futures' results. If a
        bucket has failed, DDP would only say that an exception is no tensor."""
        if self.delayed:  # the backward pass has ended, and DDP takes the results next
            self.delayed = False
            self._end_pass()
            return
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)
        except RuntimeError:  # no backward pass: a rank without further data, in DDP's join()
            self._end_pass()

    def _end_pass(self) -> None:
        error = self._pending.wait_until_synchronized()
        if error is not None:
            raise self.fail(error) from error
        self.step_open = True
        if self.on_end is not None:
            self.on_end()
