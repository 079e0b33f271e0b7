"""The parallelisms' own programs of a step, on tensors without values: what is computed takes no time here.

They differ from those of a training run in where gradients come from, and in values that nobody can read: the
norm of the gradient is said to be finite, and no update is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from gradwire.codecs.interface import Layout
from gradwire.harness.comm.world.interface import RankProgram, World
from gradwire.harness.parallel.accumulation import bucketed
from gradwire.harness.parallel.buckets import BucketLayouts, parameter_names
from gradwire.harness.parallel.ddp import DataParallel
from gradwire.harness.parallel.interface import Batch, ParallelSetup
from gradwire.harness.parallel.replicas import Replicas
from gradwire.harness.parallel.settings import (
    DataParallelConfig,
    ParallelConfig,
    PipelineConfig,
    ShardedConfig,
)
from gradwire.harness.parallel.sharded.parallelism import Sharded
from gradwire.harness.studies.predict.model import Part
from gradwire.harness.studies.predict.stages import PipelineStep


class _Unprepared:
    """In Accelerate's place: leaves the model as it is."""

    def prepare_model(self, model: nn.Module, evaluation_mode: bool) -> nn.Module:
        return model


class ShardedStep(Sharded):
    """A step of sharded data parallelism; gradients get ready in the order of the model's parameters."""

    def __init__(self, setup: ParallelSetup, part: Part, world: World) -> None:
        super().__init__(setup, part.module(), cast(Accelerator, _Unprepared()), world)
        self._make_buckets(list(self._parameters))

    def programs(self) -> dict[int, RankProgram[Any]]:
        """What each rank does in the step."""
        return {rank: partial(self._step_of_rank, 0, [{}], 0.0, False) for rank in self._codecs}

    def _forward_backward(self, step: int, batches: Sequence[Batch], rank: int) -> Tensor:
        assert self._hooks.receive is not None
        for name, parameter in self._parameters.items():
            self._hooks.receive(name, parameter.data)
        return torch.zeros(())

    def _norm_of(self, squares: Sequence[Tensor]) -> float:
        return 1.0

    def _update(self, gradients: Sequence[Tensor], norm: float, rate: float, rank: int) -> None:
        pass


class _Bucket(NamedTuple):
    """What DistributedDataParallel would hand its hook."""

    gradients: Tensor
    own: list[nn.Parameter]
    last: bool

    def buffer(self) -> Tensor:
        return self.gradients

    def parameters(self) -> list[nn.Parameter]:
        return self.own

    def is_last(self) -> bool:
        return self.last


class DataParallelStep(DataParallel):
    """A step of data parallelism, with the buckets that DistributedDataParallel would make of gradients that
    get ready in the order of the model's parameters."""

    def __init__(self, setup: ParallelSetup, part: Part, world: World) -> None:
        model = part.module()
        Replicas.__init__(self, setup, model, cast(Accelerator, _Unprepared()), world)
        self._parameters, self._used = parameter_names(model), set()
        supports = next(iter(self._codecs.values())).supports
        self._layouts = BucketLayouts(model, partial(supports, setup.topology, world.size))
        sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        names = bucketed(list(sizes), sizes, setup.parallel.bucket_cap_mb)
        self._frozen = tuple(self._layouts.named(own, torch.float32, world.device) for own in names)

    def programs(self) -> dict[int, RankProgram[Any]]:
        """What each rank does in the step."""
        update = partial(torch.ones, ())
        return {rank: partial(self._step_of_rank, 0, [{}], update, False) for rank in self._codecs}

    def _forward_backward(self, step: int, batches: Sequence[Batch], rank: int) -> Tensor:
        assert self._pass is not None and self._frozen is not None
        for layout in self._frozen:
            self._pass.add(cast(GradBucket, self._bucket(layout, layout is self._frozen[-1])))
        return torch.zeros(())

    def _bucket(self, layout: Layout, last: bool) -> _Bucket:
        gradients = torch.empty(layout.numel, device=layout.device)
        return _Bucket(gradients, [self._parameters[name] for name in layout.names], last)


Step = ShardedStep | DataParallelStep | PipelineStep

STEPS: dict[type[ParallelConfig], type[ShardedStep] | type[DataParallelStep] | type[PipelineStep]] = {
    ShardedConfig: ShardedStep,
    PipelineConfig: PipelineStep,
    DataParallelConfig: DataParallelStep,
}
"""By the settings of the parallelism; those from outside have none."""
