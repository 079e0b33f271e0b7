"""What the hooks of one sharded model remember between their calls: the step, and each module's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, Result
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.library.failures import SynchronizationError, again, in_words
from gradwire.harness.library.parameters import Process
from gradwire.harness.library.shard_modules import ShardedModule
from gradwire.harness.library.shard_slices import GradientSlices, contiguous
from gradwire.harness.parallel.codec_steps import end_codecs
from gradwire.harness.parallel.sharded.buckets import FlatBucket
from gradwire.harness.parallel.sharded.weights import (
    Exact,
    QuantizedDifferences,
    WeightMessages,
    gathering,
)
from gradwire.harness.parallel.synchronize import compare_hashes, scattering
from gradwire.harness.timing.trace.step import CONTROL

NO_PASS = -1
"""PyTorch's number of no backward pass."""


class ModuleWeights:
    """What is remembered of a module's weights where differences travel. `whole`: the weights that all ranks
    hold, (ranks · shard,), None before they are first gathered. `sent`: this rank's main weights as they were
    gathered last; None once gradients have been scattered since, after which they are expected to change."""

    def __init__(self) -> None:
        self.whole: Tensor | None = None
        self.sent: Tensor | None = None


class ShardStep:
    """Gathers weights and scatters gradients for the modules of one model.

    A step is a backward pass: it begins with the pass's first scatter and is over for the codec when the next
    one begins, or when somebody says so. A pass that the script's own error has ended is a step that was
    skipped.
    """

    def __init__(
        self,
        world: ProcessWorld,
        codec: Codec,
        messages: WeightMessages,
        modules: Sequence[ShardedModule],
        slices: Sequence[GradientSlices],
        *,
        seed: int,
        check_hashes: bool,
    ) -> None:
        self.world, self.codec, self.modules = world, codec, modules
        self.step, self.step_open = 0, False
        self.process = Process()
        self.failure: SynchronizationError | None = None
        self.explain: Callable[[BaseException], str] = in_words
        """The text of an error that ends a pass."""
        self.weights = [ModuleWeights() for _ in modules]
        self._messages, self._seed, self._check_hashes = messages, seed, check_hashes
        self._slices = slices
        self._scattered: set[int] = set()
        """The modules that have scattered in the step, none before its first scatter."""
        self._pass = NO_PASS
        """PyTorch's number of the backward pass of the step."""
        self._rank_step = world.open_step()

    @property
    def steps(self) -> int:
        """The number of steps synchronized so far."""
        return self.step + self.step_open

    @property
    def remembers_weights(self) -> bool:
        return isinstance(self._messages, QuantizedDifferences)

    def run(self, collective: Collective[Result]) -> Result:
        """Runs a collective of this rank between two steps."""
        return self.world.run({self.world.rank: collective})[self.world.rank]

    def gather(self, module: ShardedModule, output: Tensor, main: Tensor) -> None:
        """Fills `output`, (ranks · shard,), with the weights that all ranks hold, given this rank's main
        weights, (shard,), which may be a part of `output`."""
        reason = module.refusal(quantized=not isinstance(self._messages, Exact))
        if reason is not None:
            raise ValueError(f"{module.name or 'the model'} {reason}")
        if not self.remembers_weights:
            self._gather(self._messages, module, output, main)
            return
        own = self.weights[module.number]
        if own.whole is None:
            own.whole = torch.empty_like(output)
            self._gather(Exact(), module, own.whole, main)
        elif own.sent is None:
            self._gather(self._messages, module, own.whole, main)
        elif self._changed(module, own.sent, main):  # not by an update, which follows a scatter
            self._gather(Exact(), module, own.whole, main)
        own.sent = main.clone()
        output.copy_(own.whole)

    def _gather(self, messages: WeightMessages, module: ShardedModule, weights: Tensor, main: Tensor) -> None:
        """Brings `weights`, (ranks · shard,), up to date with all ranks' main weights."""
        world, numel = self.world, main.numel()
        layout = Layout.flat(weights.numel(), f"weights {module.name}", weights.device)
        bucket = FlatBucket(layout, weights[:0], weights, contiguous(world.size, numel))
        found = self._await(partial(gathering, messages, bucket, world.rank), main.float(), layout)
        for rank, message in enumerate(found):
            messages.decode(message, bucket, rank)
        if self._check_hashes:
            self.run(partial(compare_hashes, weights, f"step {self.steps}", "weights"))

    def _changed(self, module: ShardedModule, sent: Tensor, main: Tensor) -> bool:
        """Whether any rank's main weights are others than those it has sent. Where gradients were not
        scattered in between they usually are not, and nothing is to be sent; if they are, the script has
        replaced them, as by a checkpoint."""
        flag = torch.tensor([not torch.equal(sent, main)], dtype=torch.uint8, device=main.device)
        layout = Layout.flat(1, f"changed {module.name}", main.device)
        return any(bool(each) for each in self._await(_gathering_flags, flag, layout))

    def scatter(self, module: ShardedModule, output: Tensor, x: Tensor, op: Any) -> None:
        """Fills `output`, (shard,), with this rank's slice of the mean of all `x`, (ranks · shard,)."""
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(
                f"{module.name or 'the model'} asks for {op} of its gradients, codecs give means and sums; "
                "leave set_gradient_divide_factor() out"
            )
        self._begin(module)
        slices, world = self._slices[module.number], self.world
        if slices.numel != output.numel():
            raise ValueError(
                f"{module.name or 'the model'} has gradients for {output.numel()} coordinates of a shard of "
                f"{slices.numel}; give every parameter a gradient in each pass, or freeze it from the start"
            )
        this_round = Round(self.step, slices.layout, world.rank, world.size, self._seed, module.number)
        shard = slices.shards[world.rank]
        make = partial(scattering, self.codec, this_round=this_round, shard=shard)
        mean = self._await(make, slices.placed(x), slices.layout)[: output.numel()]
        output.copy_(mean if op == dist.ReduceOp.AVG else mean * world.size)
        self.weights[module.number].sent = None

    def _await(self, make: Callable[[Tensor], Collective[Result]], x: Tensor, layout: Layout) -> Result:
        """Runs a step's collective and waits for it; on CUDA the current stream does."""
        uses_backend = self.codec.traits.uses_backend
        started = self._rank_step.start(
            make, x, buffers=str(layout.uid), coordinates=layout.numel, in_turn=uses_backend
        )
        error = started.wait()
        if error is not None:
            raise error
        return started.result()

    def _begin(self, module: ShardedModule) -> None:
        """Begins a step if this is the first scatter of a backward pass. Raises ValueError for the second
        one of a module: a codec's step has one mean for each."""
        this_pass = torch._C._current_graph_task_id()
        if this_pass != self._pass:
            self.end_step()
            self._rank_step = self.world.open_step()
            self._pass = this_pass
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)
        elif module.number in self._scattered:
            raise ValueError(
                f"{module.name or 'the model'} scatters gradients twice in one backward pass, codecs once in "
                "each; call backward() apart for each of its uses"
            )
        self._scattered.add(module.number)

    def _end_pass(self) -> None:
        """PyTorch calls it at the end of a pass in which nothing has failed."""
        self.step_open = True

    def end_step(self, skipped: bool = False) -> None:
        """Tells the codec that the step's gradients are all scattered, or that they are not used."""
        if not self._scattered:
            return
        world, skipped = self.world, skipped or not self.step_open
        self._forget_pass()
        end_codecs(world, {world.rank: self.codec}, self.step, skipped=skipped)
        if self.codec.traits.clock_driven:
            world.recorders[world.rank].restart()
        self.step += 1

    def restart(self, step: int) -> None:
        """Makes the next pass step number `step`, whatever came before."""
        self._forget_pass()
        self.step = step

    def _forget_pass(self) -> None:
        self._scattered, self._pass, self.step_open = set(), NO_PASS, False

    def guarded(self, work: Callable[[], None]) -> None:
        """Does a hook's work. Raises SynchronizationError if it fails, and each time after."""
        self.process.check()  # a child must not tell the ranks that this one has failed
        if self.failure is not None:
            raise again(self.failure)
        try:
            if self.world.closed:
                raise RuntimeError(
                    "the connections to the other ranks have been closed; call detach() on what "
                    "gradwire.shard_hooks() returned to train on without a codec"
                )
            work()
        except Exception as error:
            raise self.fail(error) from error

    def fail(self, error: BaseException) -> SynchronizationError:
        """Returns the error to raise because of `error`, which ends the synchronization."""
        failure = SynchronizationError(f"rank {self.world.rank}, step {self.steps}: {self.explain(error)}")
        failure.__cause__ = error
        self.failure = again(failure)
        return failure


def _gathering_flags(own: Tensor) -> Collective[list[Tensor]]:
    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        return await comm.in_phase(CONTROL).all_gather(own)

    return run
