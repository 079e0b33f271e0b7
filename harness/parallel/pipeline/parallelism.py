"""Pipeline parallelism: stages compute micro-batches by a schedule; each stage's replicas synchronize."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.wrappers.decisions import receive_stage_reports, stage_report
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission, World
from gradwire.harness.models.stages import make_stage, tied_parameter
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.accumulation import Accumulation, GradientBucket, StartedBuckets
from gradwire.harness.parallel.base import BaseParallelism, RankOutcome
from gradwire.harness.parallel.buckets import BucketLayouts
from gradwire.harness.parallel.evaluate import evaluate_stages
from gradwire.harness.parallel.gradient_error import MeasuredBucket, kept_buckets
from gradwire.harness.parallel.interface import Batch, MicroBatches, Parallelism, ParallelSetup, ReadPart
from gradwire.harness.parallel.pipeline.passes import StageLinks, StagePasses, StageStep
from gradwire.harness.parallel.pipeline.schedule import ORDERS, check, make_schedule
from gradwire.harness.parallel.pipeline.stages import HostedStage, assembled, load_pipeline, pipeline_state
from gradwire.harness.parallel.pipeline.tied import agree, start_nothing, summing_ends
from gradwire.harness.parallel.settings import PipelineConfig
from gradwire.harness.parallel.synchronize import end_codecs, synchronization
from gradwire.harness.timing.trace.step import UPDATE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NORM, TIED = "norm", "tied"
"""Labels of computation other than passes and updates."""


class Pipeline(BaseParallelism):
    """Holds one codec for each of the world's ranks in this process, and one copy of each of their stages."""

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        assert isinstance(setup.parallel, PipelineConfig)
        super().__init__(setup, model, accelerator, world)
        self._stages, self.replicas = setup.parallel.stages, world.size // setup.parallel.stages
        whole, family = cast("PreTrainedModel", model), setup.model.family
        supports = partial(next(iter(self._codecs.values())).supports, setup.topology, self.replicas)
        self._tied = tied_parameter(whole, family) if self._stages > 1 else None
        self._hosted: dict[int, HostedStage] = {}
        for number in sorted({self.group(rank) for rank in world.ranks}):
            stage = make_stage(whole, family, number, self._stages)
            layouts = BucketLayouts(stage.model, supports)
            ranks = [rank for rank in world.ranks if self.group(rank) == number]
            self._hosted[number] = HostedStage(stage, accelerator, setup, layouts, ranks)
        counts = {rank: [float(len(self._held(rank).layouts))] for rank in world.ranks}
        self._most_buckets = int(max(count for (count,) in world.gather(counts)))
        order = ORDERS[setup.parallel.schedule]
        self._schedule = make_schedule(order, self._stages, setup.accumulation)
        check(self._schedule, setup.accumulation)

    def _held(self, rank: int) -> HostedStage:
        """The stage held by a rank of this process."""
        return self._hosted[self.group(rank)]

    def replica(self, rank: int) -> int:
        return rank % self.replicas

    def group(self, rank: int) -> int:
        return rank // self.replicas

    def layout(self, rank: int) -> tuple[Layout, ...]:
        return self._held(rank).layouts

    @property
    def _trained(self) -> nn.Module:
        return nn.ModuleList(held.stage for held in self._hosted.values())

    def _warm_up_passes(self, batches: MicroBatches, passes: int) -> None:
        for index in range(passes):
            programs = {
                rank: partial(self._gradients, -1 - index, batches[rank], measured=False)
                for rank in self._codecs
            }
            self._world.run_step(-1 - index, programs)
            end_codecs(self._world, self._codecs, -1 - index)
        for held in self._hosted.values():
            held.updater.warm_up()

    async def _gradients(
        self, step: int, batches: Sequence[Batch], rank_step: RankStep, *, measured: bool
    ) -> RankOutcome:
        """Computes all passes, and replaces the gradients of the stage's parameters by their means over the
        replicas."""
        rank, held = rank_step.rank, self._held(rank_step.rank)
        accumulation = Accumulation(
            StartedBuckets(rank_step, measured, is_own=True),
            held.buckets[rank],
            partial(self._synchronization, step, rank) if self.replicas > 1 else None,
            len(batches),
        )
        own = StageStep(
            held.stage, self._stages, self.replica(rank), self.replicas, batches, step, self._setup.seed
        )
        links = StageLinks(self._codecs[rank], own)
        passes = StagePasses(own, held.forward, self._accelerator, rank_step, links)
        await passes.run(self._schedule[held.stage.number], accumulation, held.hooks)
        if self.replicas > 1:
            start_nothing(rank_step, self._most_buckets - len(held.layouts), self._world.device)
            means = [await started for started in accumulation.started]
            copies = kept_buckets(accumulation.started, [each.clone() for each in means]) if measured else []
        else:  # the only replica's gradients are the mean
            means = [bucket.gradient for bucket in held.buckets[rank]]
            kept = [mean.clone() for mean in means] if measured else ()
            copies = [MeasuredBucket(copy.clone, copy) for copy in kept]
        rank_step.replicated(partial(held.set_gradients, means, rank), self.group(rank))
        await self._sum_tied(held, rank_step)
        with rank_step.compute(NORM):
            counted_elsewhere = self._tied.output if self._tied and held.stage.is_last else None
            squares = rank_step.replicated(partial(held.squares, counted_elsewhere), self.group(rank))
        figures = await agree(squares, passes.loss, stage_report(self._codecs[rank]), rank_step)
        if figures.reports:
            receive_stage_reports(self._codecs[rank], figures.reports)
        return RankOutcome(figures.loss, figures.norm, copies)

    def _synchronization(
        self, step: int, rank: int, bucket: GradientBucket, number: int, x: Tensor
    ) -> Collective[Tensor]:
        """The coroutine that reduces a stage's bucket to the mean over its replicas."""
        setup, replica = self._setup, self.replica(rank)
        stage, stages = self.group(rank), self._stages
        this_round = Round(
            step, bucket.layout, replica, self.replicas, setup.seed, number, stage=stage, stages=stages
        )
        synchronize = synchronization(self._codecs[rank], x, this_round, setup.check_hashes)

        async def run(comm: ScheduledCollectives) -> Tensor:
            return await synchronize(comm.group("replica"))

        return run

    async def _sum_tied(self, held: HostedStage, rank_step: RankStep) -> None:
        """Replaces the gradients of the parameter shared by the first and the last stage by their sum."""
        if self._tied is None:
            return
        stage, name = held.stage, None
        if stage.is_first or stage.is_last:
            name = self._tied.embedding if stage.is_first else self._tied.output
        own = torch.empty(0, device=self._world.device) if name is None else held.gradient(name)
        total = await rank_step.start(
            summing_ends, own, Submission(buffers=TIED, coordinates=own.numel(), is_own=False)
        )
        if name is not None:
            held_parameter = held.parameters[name]
            rank_step.replicated(partial(setattr, held_parameter, "grad", total), self.group(rank_step.rank))

    async def _step_of_rank(
        self, step: int, batches: Sequence[Batch], rate: float, measured: bool, rank_step: RankStep
    ) -> RankOutcome:
        outcome = await self._gradients(step, batches, rank_step, measured=measured)
        await rank_step.barrier()
        update = partial(self._held(rank_step.rank).updater.apply, rate, float(outcome.grad_norm))
        with rank_step.compute(UPDATE):
            rank_step.replicated(update, self.group(rank_step.rank))
        return outcome

    def raw_gradients(self) -> Tensor:
        raise AssertionError("measure.save_gradients_at is refused with parallel=pipeline")

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        stages = {number: held.stage for number, held in self._hosted.items()}
        return evaluate_stages(stages, self._stages, objective, self._world, micro_batch)

    def whole_model(self) -> nn.Module | None:
        return assembled(self._world, self._hosted, self._setup.model.family, self._stages)

    def finish(self) -> None:
        """Does nothing: no updates are pending between steps, and no supported model has buffers that
        training changes."""

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return pipeline_state(self._hosted, self._codecs, self.replicas)

    def load_state_dict(self, read: ReadPart) -> None:
        load_pipeline(read, self._hosted, self._codecs)


def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds pipeline parallelism in `world`."""
    return Pipeline(setup, model, accelerator, world)
