"""The state of one sharded model's hooks between their calls: the step, and each module's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.harness.comm.collective.collectives import ScheduledCollectives, all_gathering
from gradwire.harness.comm.topology.schedule import Topology
from gradwire.harness.comm.world.interface import Collective, Result, Submission
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.comm.world.process_step import ProcessStep
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.failures import again, in_words
from gradwire.harness.library.options import ShardOptions
from gradwire.harness.library.shard_gradients import GradientSlices, ReplicaMeans, contiguous
from gradwire.harness.library.shard_modules import WHAT, ShardedModule, check_complete, share_of_sum
from gradwire.harness.library.steps import NO_PASS, ModelSteps
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.sharded.shards import FlatBucket
from gradwire.harness.parallel.sharded.weights import (
    Exact,
    QuantizedDifferences,
    WeightMessages,
    gathered_by_level,
    gathering,
    weight_messages,
)
from gradwire.harness.parallel.synchronize import compare_hashes, end_codecs, scattering
from gradwire.harness.timing.trace.step import CONTROL, WEIGHTS

PartKey = tuple[int, ...]
"""The ranks of a part of all, among which a module's weights are kept from forward to backward."""


@dataclass(frozen=True)
class ShardPlan:
    """Checked arguments of `shard_hooks`, and what must be equal on all ranks.

    `slices` are where the codec keeps the modules' gradients, none where they are not divided; `layouts`
    those of what is averaged over `replicas`.
    """

    options: ShardOptions
    codec: Codec
    topology: Topology
    modules: Sequence[ShardedModule]
    slices: Sequence[GradientSlices]
    layouts: Sequence[Layout]
    replicas: dist.ProcessGroup | None
    description: Statement


class ModuleWeights:
    """The memory of a module's weights where differences travel. `whole`: the weights that all ranks
    hold, (ranks · shard,), None before they are first gathered. `sent`: this rank's main weights as they were
    gathered last; None once gradients have been scattered since, after which they are expected to change."""

    def __init__(self) -> None:
        self.whole: Tensor | None = None
        self.sent: Tensor | None = None


class ShardStep(ModelSteps):
    """Gathers weights and scatters gradients for the modules of one model.

    A step is a backward pass: it begins with the pass's first scatter and is over for the codec when the next
    one begins, or on `end_step`. A pass that the script's own error has ended is a step that was
    skipped.
    """

    def __init__(
        self,
        plan: ShardPlan,
        world: ProcessWorld,
        parts: Mapping[PartKey, ProcessWorld],
        replicas: ReplicaMeans | None,
        seed: int,
    ) -> None:
        """`world` is that of all ranks among which weights are divided, `parts` those of parts of them;
        `seed` is the replica's."""
        super().__init__(world, plan.codec, WHAT)
        self.modules = plan.modules
        self.explain_replicas: Callable[[BaseException], str] = in_words
        """The text of one between replicas."""
        self.replicas = replicas
        self.weights = [ModuleWeights() for _ in plan.modules]
        options = plan.options
        settings = ShardedConfig(
            name="sharded",
            weights=options.weights,
            weight_bits=options.weight_bits,
            weight_group=options.weight_group,
        )
        self._messages, self._seed = weight_messages(settings), seed
        self._check_hashes = options.check_hashes
        self._slices, self._parts = plan.slices, parts
        self._scattered, self._averaged = set[int](), set[int]()
        """The modules that have scattered in the step, and those that have averaged over replicas."""
        self._pass = NO_PASS
        """PyTorch's number of the backward pass of the step."""
        self._rank_step = world.open_step()

    @property
    def remembers_weights(self) -> bool:
        return isinstance(self._messages, QuantizedDifferences)

    @property
    def worlds(self) -> list[ProcessWorld]:
        """The connections to other ranks, those to all of them first."""
        between = [] if self.replicas is None or self.replicas.world is self.world else [self.replicas.world]
        return [self.world, *self._parts.values(), *between]

    def run(self, collective: Collective[Result]) -> Result:
        """Runs a collective of this rank between two steps."""
        return self.world.run({self.world.rank: collective})[self.world.rank]

    def gather(self, module: ShardedModule, group: dist.ProcessGroup, output: Tensor, main: Tensor) -> None:
        """Fills `output`, (ranks · shard,), with the weights that all ranks hold, given this rank's main
        weights, (shard,), which may be a part of `output`. Where only a `group` of them is asked, `main` is a
        part of these weights themselves, which backward needs again."""
        reason = module.refusal(quantized=not isinstance(self._messages, Exact))
        if reason is not None:
            raise ValueError(f"{module.name or 'the model'} {reason}")
        if group.size() != self.world.size:
            self._gather_bytes(self._parts[part_key(group)], module, output, main)
            return
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
        if isinstance(messages, Exact):
            self._gather_bytes(self.world, module, weights, main)
            return
        world, numel = self.world, main.numel()
        layout = Layout.flat(weights.numel(), f"weights {module.name}", weights.device)
        bucket = FlatBucket(layout, weights[:0], weights, contiguous(world.size, numel))
        found = self._await(partial(gathering, messages, bucket, world.rank), main.float(), layout)
        for rank, message in enumerate(found):
            messages.decode(message, bucket, rank)
        self._compare(world, weights)

    def _gather_bytes(self, world: ProcessWorld, module: ShardedModule, weights: Tensor, own: Tensor) -> None:
        """Fills `weights` with those of all ranks of `world` as they are, of whatever types."""
        rows, row = weights.view(torch.uint8).view(world.size, -1), own.view(torch.uint8)
        layout = Layout.flat(rows.numel(), f"weights {module.name}", weights.device)
        step = self._rank_step if world is self.world else world.open_step()
        make = partial(_gathering_bytes, [row.numel()] * world.size)
        for each, message in zip(rows, self._await(make, row, layout, step), strict=True):
            each.copy_(message)
        self._compare(world, weights)

    def _compare(self, world: ProcessWorld, weights: Tensor) -> None:
        if self._check_hashes:
            comparing = partial(compare_hashes, weights, f"step {self.steps}", "weights")
            world.run({world.rank: comparing})

    def _changed(self, module: ShardedModule, sent: Tensor, main: Tensor) -> bool:
        """True if any rank's main weights are others than those it has sent. Where gradients were not
        scattered in between they usually are not, and nothing is to be sent; if they are, the script has
        replaced them, as by a checkpoint."""
        flag = torch.tensor([not torch.equal(sent, main)], dtype=torch.uint8, device=main.device)
        layout = Layout.flat(1, f"changed {module.name}", main.device)
        return any(bool(each) for each in self._await(partial(all_gathering, phase=CONTROL), flag, layout))

    def scatter(self, module: ShardedModule, output: Tensor, x: Tensor, op: Any) -> None:
        """Fills `output`, (shard,), with this rank's slice of the mean of all `x`, (ranks · shard,)."""
        share = share_of_sum(op, module.name or "the model")
        self._begin(module, self._scattered, "scatters")
        slices, world = self._slices[module.number], self.world
        check_complete(module, output.numel(), slices.numel)
        this_round = Round(self.step, slices.layout, world.rank, world.size, self._seed, module.number)
        shard = slices.shards[world.rank]
        make = partial(scattering, self.codec, this_round=this_round, shard=shard)
        mean = self._await(make, slices.placed(x), slices.layout)[: output.numel()]
        output.copy_(mean if share is None else mean * (share * world.size))
        self.weights[module.number].sent = None

    def average(self, module: ShardedModule, x: Tensor, op: Any) -> None:
        """Makes `x`, (numel,), the mean over all replicas, or their sum, as `op` says."""
        share = share_of_sum(op, module.name or "the model")
        self._begin(module, self._averaged, "averages")
        replicas = self.replicas
        assert replicas is not None, "it has put the hook in its place"
        check_complete(module, x.numel(), replicas.layouts[module.number].numel)
        mean = replicas.average(module.number, x, self.step)
        x.copy_(mean if share is None else mean * (share * replicas.world.size))

    def _await(
        self,
        make: Callable[[Tensor], Collective[Result]],
        x: Tensor,
        layout: Layout,
        step: ProcessStep | None = None,
    ) -> Result:
        """Runs a collective of `step`, by default this one, and waits for it; on CUDA the current stream
        does."""
        uses_backend = self.codec.traits.uses_backend
        started = (step or self._rank_step).start(
            make, x, Submission(buffers=str(layout.uid), coordinates=layout.numel, in_turn=uses_backend)
        )
        return started.result()

    def _begin(self, module: ShardedModule, done: set[int], does: str) -> None:
        """Begins a step if this is the first scatter or average of a backward pass. Raises ValueError for the
        second one of a module, which is in `done`: a codec's step has one mean for each."""
        this_pass = torch._C._current_graph_task_id()
        if this_pass != self._pass:
            self.end_step()
            self._rank_step = self.world.open_step()
            if self.replicas is not None:
                self.replicas.begin_step()
            self._pass = this_pass
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)
        elif module.number in done:
            raise ValueError(
                f"{module.name or 'the model'} {does} gradients twice in one backward pass, codecs once in "
                "each; call backward() apart for each of its uses"
            )
        done.add(module.number)

    def _end_pass(self) -> None:
        """PyTorch calls it at the end of a pass in which nothing has failed."""
        self.step_open = True

    def end_step(self, skipped: bool = False) -> None:
        ended = [(self.world, self.codec)] if self._scattered else []
        if self._averaged and self.replicas is not None:
            ended.append((self.replicas.world, self.replicas.codec))
        if not ended:
            return
        skipped = skipped or not self.step_open
        self._forget_pass()
        for world, codec in ended:
            end_codecs(world, {world.rank: codec}, self.step, skipped=skipped)
            if codec.traits.clock_driven:
                world.recorders[world.rank].restart()
        self.step += 1

    def restart(self, step: int) -> None:
        self._forget_pass()
        self.step = step

    def _forget_pass(self) -> None:
        self._scattered.clear()
        self._averaged.clear()
        self._pass, self.step_open = NO_PASS, False

    def guarded(
        self, work: Callable[[], None], explain: Callable[[BaseException], str] | None = None
    ) -> None:
        """Does a hook's work; `explain` has the text of its error if it is another than usual.
        Raises SynchronizationError if it fails, and each time after."""
        self.process.check()  # a child must not report a failure of this rank
        if self.failure is not None:
            raise again(self.failure)
        try:
            self.check_connected()
            work()
        except Exception as error:
            raise self.fail(error, explain) from error


def part_key(group: dist.ProcessGroup) -> PartKey:
    return tuple(dist.get_process_group_ranks(group))


def _gathering_bytes(sizes: Sequence[int], own: Tensor) -> Collective[list[Tensor]]:
    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        return await gathered_by_level(comm.in_phase(WEIGHTS), own, sizes)

    return run
