"""The base of every parallelism's step, and the base of those whose ranks each hold a whole model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import RankProgram, RankStep, World
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.buffers import RankBuffers
from gradwire.harness.parallel.evaluate import evaluate
from gradwire.harness.parallel.gradient_error import GradientError, MeasuredBucket, gather_raw, gradient_error
from gradwire.harness.parallel.interface import Batch, MicroBatches, ParallelSetup, ReadPart, StepOutcome
from gradwire.harness.parallel.passes import forward_backward
from gradwire.harness.parallel.state import KeepsMoments, Snapshot, codec_state, load_state, replicated_state
from gradwire.harness.parallel.synchronize import end_codecs


class RankOutcome(NamedTuple):
    """The outcome of one rank's step: its mean loss, the norm of the mean gradient, and the buckets kept in a
    measured step. Scalars may still be on the device; they are read at the end of the step."""

    loss: Tensor | float
    grad_norm: Tensor | float
    copies: Sequence[MeasuredBucket]


class BaseParallelism(ABC):
    """Holds one codec for each of the world's ranks in this process, and runs the ranks' programs of a
    step.
    """

    settling_passes = 1

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        self._setup, self._model, self._accelerator, self._world = setup, model, accelerator, world
        self._codecs: dict[int, Codec] = {rank: make_codec(**setup.codec) for rank in world.ranks}
        self._copies: Mapping[int, Sequence[MeasuredBucket]] = {}

    @property
    def _trained(self) -> nn.Module:
        """The modules of this process that are trained."""
        return self._model

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        snapshot = Snapshot(self._trained, self._codecs)
        self._warm_up_passes(batches, passes)
        self._settled(snapshot)
        snapshot.restore(self._trained, self._codecs)
        self._world.forget()

    @abstractmethod
    def _warm_up_passes(self, batches: MicroBatches, passes: int) -> None:
        """Makes discarded passes and one discarded update."""

    def _settled(self, before: Snapshot) -> None:  # noqa: B027 (a stage has nothing to do)
        """Ends the warm-up and restores the state `before` it."""

    def _round(self, step: int, layout: Layout, rank: int, bucket: int) -> Round:
        """The `Round` of a bucket's synchronization over all ranks."""
        return Round(step, layout, rank, self._world.size, self._setup.seed, bucket)

    @abstractmethod
    async def _step_of_rank(
        self, step: int, batches: Sequence[Batch], rate: float, measured: bool, rank_step: RankStep
    ) -> RankOutcome:
        """One rank's program of a step: passes, synchronization and update."""

    @abstractmethod
    def group(self, rank: int) -> int:
        """The number of the group of ranks that synchronize the same parameters as `rank`."""

    def programs(
        self, step: int, batches: MicroBatches, learning_rate: float, measured: bool = False
    ) -> dict[int, RankProgram[RankOutcome]]:
        """The program of a step for each of the ranks that `batches` names."""
        return {
            rank: partial(self._step_of_rank, step, own, learning_rate, measured)
            for rank, own in batches.items()
        }

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        self._copies = {}  # the memory of the step before is free during this one
        ended = self._world.run_step(step, self.programs(step, batches, learning_rate, measured))
        ranks = ended.results
        self._copies = {rank: own.copies for rank, own in ranks.items()}
        first = next(iter(ranks.values()))
        norm, *losses = read_together([first.grad_norm, *(own.loss for own in ranks.values())])
        skipped = not math.isfinite(norm)
        unused = self._unused()
        logged, decision = end_codecs(self._world, self._codecs, step, skipped=skipped, unused=unused)
        by_rank = dict(zip(ranks, losses, strict=True))
        return StepOutcome(by_rank, norm, skipped, ended.simulated_s, logged, decision)

    def _unused(self) -> Collection[str]:
        """The parameters whose means are not applied in this step."""
        return ()

    def gradient_error(self) -> GradientError:
        return gradient_error(self._world, self._copies, self.group)

    def raw_gradients(self) -> Tensor:
        return gather_raw(self._world, self._copies)

    def raw_buckets(self, rank: int) -> list[Tensor]:
        return [copy.read_raw() for copy in self._copies[rank]]


class Replicas(BaseParallelism):
    """Ranks that each hold the whole model and train it on their own data.

    Replicas are identical bit for bit, so ranks that share a process share a model. `_updater` is its
    optimizer, and `_prepared` the model as wrapped by Accelerate or DDP.
    """

    _updater: KeepsMoments
    _prepared: nn.Module

    def __init__(
        self, setup: ParallelSetup, model: nn.Module, accelerator: Accelerator, world: World
    ) -> None:
        super().__init__(setup, model, accelerator, world)
        self._buffers = RankBuffers(model, world)
        self.replicas = world.size

    def replica(self, rank: int) -> int:
        return rank

    def group(self, rank: int) -> int:
        return 0

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        super().warm_up(batches, passes)
        self._check_buckets()
        self._buffers.begin()

    def _check_buckets(self) -> None:
        """Raises ValueError if the codec would do nothing for this model's buckets."""
        num_chunks = make_schedule(self._setup.topology, self.replicas).num_chunks
        for rank, codec in self._codecs.items():
            reason = codec.refuses_buckets(self.layout(rank), self.replicas, num_chunks)
            if reason is not None:
                raise ValueError(reason)

    @abstractmethod
    def layout(self, rank: int) -> tuple[Layout, ...]:
        """The frozen buckets of a rank of this process."""

    def _settled(self, before: Snapshot) -> None:
        end_codecs(self._world, self._codecs, -1)
        self._buffers.watch(before.buffers)

    def _forward_backward(self, step: int, batches: Sequence[Batch], rank: int) -> Tensor:
        """Accumulates a rank's gradients; returns its mean loss."""
        return forward_backward(self._prepared, self._accelerator, batches, self._setup.seed, step, rank)

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        return evaluate(self._model, objective, self._world, micro_batch)

    def whole_model(self) -> nn.Module:
        return self._model

    def finish(self) -> None:
        self._buffers.take_first()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        own = codec_state(self._codecs)
        return own if 0 not in self._codecs else own | replicated_state(self._model, self._updater)

    def load_state_dict(self, read: ReadPart) -> None:
        load_state(read, self._model, self._updater, self._codecs)
        self._buffers.begin()


def read_together(values: Sequence[Tensor | float]) -> list[float]:
    """Scalars as Python numbers. Those on the device are read with one copy, so that the host waits once per
    step."""
    tensors = [value.detach().double() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    return [next(read) if isinstance(value, Tensor) else value for value in values]
