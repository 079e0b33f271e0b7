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
from gradwire.harness.comm.collective.collectives import all_gathering
from gradwire.harness.comm.topology.schedule import Topology
from gradwire.harness.comm.world.interface import Collective, Result, Submission
from gradwire.harness.comm.world.process import ProcessWorld
from gradwire.harness.comm.world.process_step import ProcessStep
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.failures import again, in_words
from gradwire.harness.library.options import ShardOptions
from gradwire.harness.library.shard_gradients import GradientSlices, ReplicaMeans, contiguous
from gradwire.harness.library.shard_modules import WHAT, ShardedModule, check_complete, share_of_sum
from gradwire.harness.library.shard_places import Places
from gradwire.harness.library.shard_weights import (
    ModuleWeights,
    WholeGathering,
    as_sent,
    in_place,
    module_bucket,
)
from gradwire.harness.library.steps import NO_PASS, ModelSteps
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.sharded.weights import (
    Exact,
    QuantizedDifferences,
    WeightMessages,
    weight_messages,
)
from gradwire.harness.parallel.synchronize import Scattering, compare_hashes, end_codecs
from gradwire.harness.timing.trace.step import CONTROL

PartKey = tuple[int, ...]
"""The subset of ranks among which a module's weights are kept between forward and backward."""


@dataclass(frozen=True)
class ShardPlan:
    """The checked arguments of `shard_hooks`, with the description that must be equal on all ranks.

    `slices` maps the modules' gradients to the codec's shards, empty if they are not divided; `layouts`
    describes the gradients that are averaged over `replicas`.
    """

    options: ShardOptions
    codec: Codec
    topology: Topology
    modules: Sequence[ShardedModule]
    slices: Sequence[GradientSlices]
    layouts: Sequence[Layout]
    replicas: dist.ProcessGroup | None
    description: Statement


class ShardStep(ModelSteps):
    """Gathers weights and scatters gradients for the modules of one model.

    A step is a backward pass: it begins with the pass's first scatter, and ends for the codec when the next
    one begins, or on `end_step`. A pass that was aborted by an error of the script counts as a skipped step.
    Where rounds are captured, they find their inputs in memory of this object, which stays in its place.
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
        self._slices, self._parts, self._places = plan.slices, parts, Places(world.device)
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
        """The connections to other ranks; the one to all ranks comes first."""
        between = [] if self.replicas is None or self.replicas.world is self.world else [self.replicas.world]
        return [self.world, *self._parts.values(), *between]

    def run(self, collective: Collective[Result]) -> Result:
        """Runs a collective of this rank between two steps."""
        return self.world.run({self.world.rank: collective})[self.world.rank]

    def gather(self, module: ShardedModule, group: dist.ProcessGroup, output: Tensor, main: Tensor) -> None:
        """Fills `output`, (ranks · shard,), with the weights that all ranks hold, given this rank's main
        weights `main`, (shard,), which may be a part of `output`.

        If only a `group` of the ranks is asked, `main` is already a part of the weights, which the backward
        pass needs again.
        """
        reason = module.refusal(quantized=not isinstance(self._messages, Exact))
        if reason is not None:
            raise ValueError(f"{module.name or 'the model'} {reason}")
        if group.size() != self.world.size:
            self._gather_moved(self._parts[part_key(group)], Exact(), module, output, main)
            return
        if not self.remembers_weights:
            self._gather_moved(self.world, self._messages, module, output, main)
            return
        own, messages = self.weights[module.number], self._messages
        if own.whole is None:
            own.whole, messages = torch.empty_like(output), Exact()
        elif own.sent is not None and not own.awaits_update:
            if not self._changed(module, own.sent, main):
                output.copy_(own.whole)
                return
            messages = Exact()  # no update changes them, because one follows a scatter
        self._gather(self.world, messages, module, own.whole, own.keep(main))
        output.copy_(own.whole)

    def _gather_moved(
        self,
        world: ProcessWorld,
        messages: WeightMessages,
        module: ShardedModule,
        weights: Tensor,
        main: Tensor,
    ) -> None:
        """`_gather` for tensors that are not where they were in the pass before."""
        with in_place(self._places if world.captures else None, weights, main) as (whole, own):
            self._gather(world, messages, module, whole, own)

    def _gather(
        self,
        world: ProcessWorld,
        messages: WeightMessages,
        module: ShardedModule,
        weights: Tensor,
        main: Tensor,
    ) -> None:
        """Updates `weights`, (ranks · shard,), from the main weights of all ranks of `world`."""
        whole, own = as_sent(messages, weights, main)
        bucket = module_bucket(module.name, whole, contiguous(world.size, own.numel()))
        step = self._rank_step if world is self.world else world.open_step()
        make = partial(WholeGathering, messages, bucket, world.rank)
        self._await(make, own, bucket.layout, step)
        self._compare(world, weights)

    def _compare(self, world: ProcessWorld, weights: Tensor) -> None:
        if self._check_hashes:
            comparing = partial(compare_hashes, weights, f"step {self.steps}", "weights")
            world.run({world.rank: comparing})

    def _changed(self, module: ShardedModule, sent: Tensor, main: Tensor) -> bool:
        """True if any rank's main weights differ from those it has last sent.

        Without a scatter in between they usually do not, and nothing needs to be sent; if they do, the script
        has replaced them, e.g. by loading a checkpoint.
        """
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
        make = partial(Scattering, self.codec, this_round=this_round, shard=shard)
        captures = world.captures and self.codec.refuses_capture(slices.layout) is None
        with slices.placed(x, self._places if captures else None) as bucket:
            mean = self._await(make, bucket, slices.layout)[: output.numel()]
            output.copy_(mean if share is None else mean * (share * world.size))
        self.weights[module.number].awaits_update = True

    def average(self, module: ShardedModule, x: Tensor, op: Any) -> None:
        """Replaces `x`, (numel,), by its mean over all replicas, or by the sum if `op` requires it."""
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
        """Runs a collective of `step`, by default the current one, and waits for it; on CUDA only the current
        stream waits."""
        uses_backend = self.codec.traits.uses_backend
        started = (step or self._rank_step).start(
            make, x, Submission(buffers=str(layout.uid), coordinates=layout.numel, in_turn=uses_backend)
        )
        return started.result()

    def _begin(self, module: ShardedModule, done: set[int], does: str) -> None:
        """Begins a step if this is the first scatter or average of a backward pass. Raises ValueError for a
        module's second one (the module is in `done`), because a codec's step has one mean per module."""
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
        """Called by PyTorch at the end of a pass without errors."""
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
        """Runs a hook's work. Raises SynchronizationError if it fails, and on every later call; `explain` may
        replace the error's text."""
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
