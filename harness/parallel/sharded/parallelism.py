"""Sharded data parallelism: gradients are scattered during backward, weights gathered after the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.collectives import Kept
from gradwire.codecs.interface import Layout
from gradwire.harness.comm.collective.collectives import ScheduledCollectives, all_gathering
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission, World
from gradwire.harness.parallel.accumulation import Accumulation, Hooks, StartedBuckets, bucketed, squared_norm
from gradwire.harness.parallel.base import RankOutcome, Replicas
from gradwire.harness.parallel.buckets import BucketLayouts, parameter_names
from gradwire.harness.parallel.gradient_error import GradientError, gather_raw, kept_buckets
from gradwire.harness.parallel.interface import (
    Batch,
    MicroBatches,
    Parallelism,
    ParallelSetup,
    ReadPart,
    StepOutcome,
)
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.sharded.errors import sharded_error, whole_buckets, whole_main
from gradwire.harness.parallel.sharded.shards import FlatBucket, ShardOptimizer, flattened
from gradwire.harness.parallel.sharded.state import load_sharded, sharded_state
from gradwire.harness.parallel.sharded.weights import WeightGathering, weight_messages
from gradwire.harness.parallel.synchronize import Scattering, compare_hashes
from gradwire.harness.parallel.update import with_value
from gradwire.harness.timing.trace.step import CONTROL, GATHERED, UPDATE, passes_until

NORM = "norm"
"""The label of computation other than data parallelism's."""


class Sharded(Replicas):
    """One shard of main weights and moments for each of the world's ranks in this process; all of them share
    one gradient buffer."""

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        assert isinstance(setup.parallel, ShardedConfig)
        self._config = setup.parallel
        self._prepared = accelerator.prepare_model(model, evaluation_mode=True)
        super().__init__(setup, model, accelerator, world)
        self._parameters = {name: p for name, p in parameter_names(model).items() if p.requires_grad}
        self._hooks = Hooks(self._parameters)
        self._messages = weight_messages(self._config)
        self._has_main = self._config.main == "algorithm2"
        self._buckets: list[FlatBucket] = []
        self._optimizers: dict[int, ShardOptimizer] = {}

    def _warm_up_passes(self, batches: MicroBatches, passes: int) -> None:
        ready, first = dict[str, None](), self._world.ranks[0]
        with self._hooks.handing(lambda name, gradient: ready.update({name: None})):
            for index in range(passes):
                self._forward_backward(-1 - index, batches[first], first)
        if not self._buckets:
            self.make_buckets(tuple(ready))
        self._world.run_step(-1, {rank: partial(self._warm_up_rank, batches[rank]) for rank in self._codecs})

    def make_buckets(self, ready: Sequence[str]) -> None:
        """Moves parameters into buckets, in the order in which rank 0's gradients became `ready`; parameters
        without gradients come last."""
        numbers = {name: float(number) for number, name in enumerate(self._parameters)}
        order = [*ready, *(name for name in self._parameters if name not in set(ready))]
        rows = self._world.gather(dict.fromkeys(self._world.ranks, [numbers[name] for name in order]))
        names = list(self._parameters)
        order = [names[int(number)] for number in rows[0]]
        sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        codec, kept = next(iter(self._codecs.values())), self._kept()
        supports = partial(codec.supports, self._setup.topology, self._world.size)
        layouts = BucketLayouts(self._model, supports)
        dtype = getattr(torch, self._config.model_dtype)
        begun = []
        for bucket_names in bucketed(order, sizes, self._config.bucket_cap_mb):
            layout = layouts.named(bucket_names, torch.float32, self._world.device)
            bucket, whole = flattened(layout, codec.shards(layout, kept), self._parameters, dtype)
            self._buckets.append(bucket)
            begun.append(whole)
        optimizer = self._setup.optimizer
        self._optimizers = {
            rank: ShardOptimizer(self._buckets, rank, optimizer, keeps_main=self._has_main)
            for rank in self._codecs
        }
        for own in self._optimizers.values():
            own.take(begun)
        for bucket, whole in zip(self._buckets, begun, strict=True):
            self._messages.begin(whole, bucket)

    def _kept(self) -> Kept:
        """The chunks that each rank keeps of a reduce-scatter."""

        async def ask(comm: ScheduledCollectives) -> Kept:
            return comm.kept

        return self._world.run(dict.fromkeys(self._world.ranks, ask))[self._world.ranks[0]]

    async def _warm_up_rank(self, batches: Sequence[Batch], rank_step: RankStep) -> None:
        """Makes a step that changes nothing: the gathered weights are not used."""
        own = self._optimizers[rank_step.rank]
        passed, _ = self._run_pass(-1, batches, rank_step, measured=False)
        gradients = [await gradient for gradient in passed.started]
        await self._norm(gradients, rank_step)
        own.warm_up(gradients)
        for number in range(len(self._buckets)):
            await self._start_gathering(number, rank_step)

    def _run_pass(
        self, step: int, batches: Sequence[Batch], rank_step: RankStep, *, measured: bool
    ) -> tuple[Accumulation, Tensor]:
        """Runs a rank's pass and starts its buckets; returns the accumulation and the mean loss of its
        micro-batches."""
        rank = rank_step.rank

        def scatter(bucket: FlatBucket, number: int, x: Tensor) -> Collective[Tensor]:
            this_round = self._round(step, bucket.layout, rank, number)
            return Scattering(self._codecs[rank], x, this_round, bucket.shards[rank])

        self._buffers.load(rank)
        with rank_step.compute(passes_until(0)) as computing:
            starts = StartedBuckets(rank_step, measured, computing)
            passed = Accumulation(starts, self._buckets, scatter, len(batches))
            with self._hooks.handing(passed.receive):
                loss = self._forward_backward(step, batches, rank)
                passed.finish()
        return passed, loss

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        outcome = super().step(step, batches, learning_rate, measured)
        if self._setup.check_hashes:
            for bucket in self._buckets:
                compare = partial(compare_hashes, bucket.weights, f"step {step}", "weights")
                self._world.run(dict.fromkeys(self._world.ranks, compare))
        return outcome

    async def _step_of_rank(
        self, step: int, batches: Sequence[Batch], rate: float, measured: bool, rank_step: RankStep
    ) -> RankOutcome:
        passed, loss = self._run_pass(step, batches, rank_step, measured=measured)
        gradients = [await gradient for gradient in passed.started]
        norm = await self._norm(gradients, rank_step)
        copies = kept_buckets(passed.started, [each.clone() for each in gradients]) if measured else ()
        if math.isfinite(norm):
            own = self._optimizers[rank_step.rank]
            with rank_step.compute(UPDATE):
                if not self._has_main:
                    own.take([bucket.weights for bucket in self._buckets])
                own.update(gradients, norm, rate)
            await self._gather_weights(rank_step)
        return RankOutcome(loss, norm, copies)

    async def _norm(self, gradients: Sequence[Tensor], rank_step: RankStep) -> float:
        """The norm of the mean gradient, from all ranks' shards; squares are added in rank order."""
        with rank_step.compute(NORM):
            own = squared_norm(gradients, self._world.device)
        squares = await rank_step.start(
            partial(all_gathering, phase=CONTROL),
            own,
            Submission(buffers=NORM, coordinates=1, is_own=True, has_one_result=True),
        )
        return math.sqrt(sum(float(with_value(square)) for square in squares))

    async def _gather_weights(self, rank_step: RankStep) -> None:
        """Updates the model's weights from all ranks' main weights."""
        under_way = [self._start_gathering(number, rank_step) for number in range(len(self._buckets))]
        for bucket in self._buckets:
            messages = await under_way.pop(0)  # and forgets it: messages are kept no longer than needed
            with rank_step.compute(GATHERED):
                rank_step.replicated(partial(self._decode, bucket, messages))

    def _start_gathering(self, number: int, rank_step: RankStep) -> Any:
        bucket, rank = self._buckets[number], rank_step.rank
        return rank_step.start(
            partial(WeightGathering, self._messages, bucket, rank),
            self._optimizers[rank].shards[number],
            Submission(
                buffers=f"{GATHERED} {bucket.layout.uid}",
                coordinates=bucket.layout.numel,
                is_own=True,
                has_one_result=True,
            ),
        )

    def _decode(self, bucket: FlatBucket, messages: Sequence[Tensor]) -> None:
        for rank, message in enumerate(messages):
            self._messages.decode(message, bucket, rank)

    def gradient_error(self) -> GradientError:
        optimizers = self._optimizers if self._has_main else {}
        return sharded_error(self._world, self._buckets, self._copies, optimizers)

    def raw_gradients(self) -> Tensor:
        return gather_raw(self._world, whole_buckets(self._world, self._buckets, self._copies))

    def model_weights(self) -> Tensor:
        return torch.cat([bucket.weights.float() for bucket in self._buckets]).cpu()

    def main_weights(self) -> Tensor:
        return whole_main(self._world, self._buckets, self._optimizers)

    def layout(self, rank: int) -> tuple[Layout, ...]:
        assert self._buckets, "layout() before warm_up()"
        return tuple(bucket.layout for bucket in self._buckets)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return sharded_state(self._model, self._optimizers, self._codecs, has_main=self._has_main)

    def load_state_dict(self, read: ReadPart) -> None:
        load_sharded(
            read, self._model, self._optimizers, self._codecs, self._world.size, has_main=self._has_main
        )
        self._buffers.begin()


def build(setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World) -> Parallelism:
    """Builds sharded data parallelism in `world`."""
    return Sharded(setup, model, accelerator, world)
