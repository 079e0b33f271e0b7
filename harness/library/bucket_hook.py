"""The DDP communication hook, which passes each bucket to the communication threads when it is ready."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # as register_comm_hook wants it annotated

from gradwire.codecs.interface import Codec, Decision, Layout, Round
from gradwire.harness.comm.world.interface import Collective, Submission
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.comm.world.started import ProcessStarted
from gradwire.harness.library.calls import in_no_mode
from gradwire.harness.library.failures import SynchronizationError
from gradwire.harness.library.steps import NO_PASS, ModelSteps
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.gradient_error import MeasuredBucket
from gradwire.harness.parallel.synchronize import end_codecs, mean_over_active, synchronization

BACKWARD = "backward"
"""The label of computation between a pass's first bucket and its last."""


class BucketHook(ModelSteps):
    """The state of one model's hook between its calls.

    A step begins with the first bucket of a backward pass, and its buckets are sent while the pass continues.
    At the end of the pass it waits for all of them. `Synchronizer` requests copies with `measured`, and is
    then called back.
    """

    def __init__(
        self,
        world: ProcessWorld,
        codec: Codec,
        layouts: BucketLayouts,
        *,
        seed: int = 0,
        check_hashes: bool = False,
    ) -> None:
        super().__init__(world, codec, "attach()")
        self.measured = False
        self.layouts: list[Layout] = []
        """The buckets of the latest step, in order."""
        self.on_end: Callable[[], None] | None = None
        """Called within the backward pass once all its buckets are synchronized."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a backward pass fails."""
        self.on_decision: Callable[[int, Decision], None] | None = None
        """Called as a step ends with the number of the next one and what that follows."""
        self.unused: Callable[[], Collection[str]] = tuple
        """Names the parameters that no rank has used in the pass before: DDP drops their means. It waits for
        DDP's reducer, which calls the hook and must not be waited for there."""
        self._unused: Collection[str] | None = ()
        """The names that it gave; None until it was called for the latest pass."""
        self.divides_by_active: Callable[[], bool] = lambda: False
        """True if a mean is one over the ranks that still have data, in DDP's join()."""
        self.delayed = False
        """True if the next pass is the first of a static graph, after which DDP hands over all buckets at
        once."""
        self.bucket_layouts, self._seed, self._check_hashes = layouts, seed, check_hashes
        self.announced: list[Layout] = []
        self._begin_pass()

    def copies(self) -> list[MeasuredBucket]:
        """The buckets of a `measured` step with their means; available at the end of its pass."""
        return [
            self.bucket_layouts.in_memory(layout).measured(
                started.input, self._over_all.get(index, started.future.value())
            )
            for index, (layout, started) in enumerate(zip(self.layouts, self._started, strict=True))
        ]

    def restart(self, step: int) -> None:
        self.step, self.step_open = step, False

    def announce(self, layouts: Sequence[Layout]) -> None:
        """Sets the buckets of the next pass, in order, if it is `delayed`: DDP then reports each of them as
        the first bucket, with that bucket's parameters."""
        self.announced, self.layouts = list(layouts), []

    @in_no_mode
    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP calls this for each bucket, in bucket order; the future holds the mean."""
        self.process.check()  # a child must not report a failure of this rank
        try:
            return self._take(bucket)
        except SynchronizationError:
            raise
        except Exception as error:
            raise self.fail(error) from error

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model with a codec cannot be pickled or copied; save model.module.state_dict(), or first call "
            "detach() on what gradwire.attach() returned"
        )

    def fail_before_pass(self, error: BaseException) -> SynchronizationError:
        """`fail` for errors found before the next pass has begun."""
        return self.fail(error, step=self.steps)

    def fail(
        self,
        error: BaseException,
        explain: Callable[[BaseException], str] | None = None,
        step: int | None = None,
    ) -> SynchronizationError:
        """`ModelSteps.fail`, by default for the latest step."""
        failure = super().fail(error, explain, self.step if step is None else step)
        self.on_failure()
        return failure

    def _take(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self.check_connected()
        index, layout, is_last = self._identify(bucket)
        if index == 0:
            self.end_step()
            self._begin_pass()
        self.layouts.append(layout)
        if is_last:
            self._computing.end()
        self._started.append(self._start(index, bucket.buffer(), layout))
        if is_last:
            self._end_with_backward()
        return self._started[-1].future

    def _begin_pass(self) -> None:
        self.layouts, self._started = [], list[ProcessStarted[Tensor]]()
        self._over_all: dict[int, Tensor] = {}
        self._rank_step = self.world.open_step()
        self._computing = self._rank_step.compute(BACKWARD)

    def end_step(self, skipped: bool = False) -> None:
        if self.step_open:
            self.step_open = False
            world = self.world
            if not _in_backward():
                self.see_unused()
            codecs = {world.rank: self.codec}
            _, decision = end_codecs(world, codecs, self.step, skipped=skipped, unused=self._unused or ())
            if self.codec.traits.clock_driven:  # its times are known: the next step's need no longer range
                world.recorders[world.rank].restart()
            self.step += 1
            if self.on_decision is not None:
                self.on_decision(self.step, decision)

    def see_unused(self) -> None:
        """Determines the parameters that the latest pass has not used, unless they are already known."""
        if self._unused is None:
            self._unused = self.unused() if self.codec.traits.stateful else ()

    def _keep(self, index: int, mean: Tensor) -> None:
        """Keeps a measured bucket's mean over all ranks if DDP gets a different one."""
        if self.measured:
            self._over_all[index] = mean

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

    def _start(self, index: int, x: Tensor, layout: Layout) -> ProcessStarted[Tensor]:
        world = self.world
        this_round = Round(self.step, layout, world.rank, world.size, self._seed, index)
        order = self.bucket_layouts.in_memory(layout)
        # A rank that has joined (DDP's join) has no backward pass.
        has_data = self.delayed or _in_backward()
        divides = world.size > 1 and self.divides_by_active()

        def synchronize(x: Tensor) -> Collective[Tensor]:
            made = synchronization(self.codec, x, this_round, self._check_hashes, order=order)
            if not divides:
                return made
            return mean_over_active(made, has_data, x.device, partial(self._keep, index))

        return self._rank_step.start(
            synchronize,
            x,
            Submission(
                buffers=str(layout.uid),
                coordinates=layout.numel,
                in_turn=self.codec.traits.uses_backend,
                keeps_input=self.measured,
            ),
        )

    def _end_with_backward(self) -> None:
        """Has `_end_pass` called when the backward pass ends, before DDP reads the futures, which would wait
        for ever for failed buckets."""
        if self.delayed:  # the backward pass has ended, and DDP takes the results next
            self.delayed = False
            self._end_pass()
            return
        if _in_backward():
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)
        else:
            self._end_pass()

    @in_no_mode
    def _end_pass(self) -> None:
        for started in self._started:
            error = self._rank_step.wait_for(started)
            if error is not None:
                raise self.fail(error) from error
        self.step_open, self._unused = True, None
        if self.on_end is not None:
            self.on_end()
        if _in_backward():  # after DDP's own callback, which ends the ranks' agreement on what is used
            torch.autograd.Variable._execution_engine.queue_callback(self.see_unused)


def _in_backward() -> bool:
    """True if this thread is in a backward pass. A rank without further data, in DDP's join(), is not."""
    return bool(torch._C._current_graph_task_id() != NO_PASS)
