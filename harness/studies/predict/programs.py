"""The parallelisms' own programs of a step on tensors without values, so that computation takes no time.

The parallelisms are those of a training run. Accelerate and DistributedDataParallel are replaced by
stand-ins, whose passes compute nothing and give every parameter a gradient of its shape, in the given order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.harness.comm.world.interface import RankProgram, World
from gradwire.harness.models.stages import Stage
from gradwire.harness.parallel.accumulation import bucketed
from gradwire.harness.parallel.buckets import parameter_names
from gradwire.harness.parallel.ddp import DataParallel
from gradwire.harness.parallel.interface import ParallelSetup
from gradwire.harness.parallel.pipeline.parallelism import Pipeline
from gradwire.harness.parallel.settings import (
    DataParallelConfig,
    ParallelConfig,
    PipelineConfig,
    ShardedConfig,
)
from gradwire.harness.parallel.sharded.parallelism import Sharded
from gradwire.harness.studies.predict.model import ModelPart, StagesPart

TRACED: tuple[type[ParallelConfig], ...] = (DataParallelConfig, PipelineConfig, ShardedConfig)
"""The settings of the parallelisms whose steps can be traced; plug-ins cannot."""


class _Uses(torch.autograd.Function):
    """Returns `x`; in the backward pass the parameter's gradient becomes ready before that of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor) -> Tensor:  # type: ignore[override]
        ctx.parameter = parameter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return gradient, torch.empty_like(ctx.parameter)


class _Loss(torch.autograd.Function):
    """A loss with the value 0 on the CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.x = x
        return x.new_zeros((), device="cpu")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return torch.empty_like(ctx.x)


def _used(x: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    """`x` after using all `parameters`; the last one's gradient becomes ready first."""
    for parameter in parameters:
        x = cast(Tensor, _Uses.apply(x, parameter))  # type: ignore[no-untyped-call]
    return x


def _output(x: Tensor) -> SimpleNamespace:
    return SimpleNamespace(loss=_Loss.apply(x))  # type: ignore[no-untyped-call]


class _WholePass(nn.Module):
    """A model's forward pass; gradients become ready in the order of its parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> SimpleNamespace:
        parameters = list(self.model.parameters())
        return _output(_used(parameters[0].new_empty(()), parameters[::-1]))


class _StagePass(nn.Module):
    """A stage's forward pass; gradients of the last layers become ready first."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, hidden: Tensor | None, input_ids: Tensor) -> Any:
        stage = self.stage
        if hidden is None:
            hidden = torch.empty(*input_ids.shape, stage.hidden_size, device=input_ids.device)
        x = _used(hidden, list(stage.named().values()))
        return _output(x) if stage.is_last else x


class _WithoutValues:
    """Replaces Accelerate: prepares passes that compute nothing, and whose losses are on the CPU.

    Each of the `tensor_parallel` workers that share a stage's matrices sends its share of the hidden states,
    as in Megatron-LM's scatter-gather (Narayanan et al. 2021, §4.1).
    """

    device = torch.device("cpu")

    def __init__(self, tensor_parallel: int = 1) -> None:
        self._tensor_parallel = tensor_parallel

    def prepare_model(self, model: nn.Module, evaluation_mode: bool) -> nn.Module:
        if not isinstance(model, Stage):
            return _WholePass(model)
        model.hidden_size = -(-model.hidden_size // self._tensor_parallel)
        return _StagePass(model)

    def backward(self, loss: Tensor) -> None:
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]


class _PredictedBucket(NamedTuple):
    """One bucket, in the form that DistributedDataParallel passes to its hook."""

    gradients: Tensor
    own: list[nn.Parameter]
    last: bool

    def buffer(self) -> Tensor:
        return self.gradients

    def parameters(self) -> list[nn.Parameter]:
        return self.own

    def is_last(self) -> bool:
        return self.last


class _BucketedPass(nn.Module):
    """Replaces DistributedDataParallel: passes to its hook the buckets that result if gradients become ready
    in the order of the model's parameters."""

    static_graph = False

    def __init__(self, model: nn.Module, bucket_cap_mb: float) -> None:
        super().__init__()
        named = parameter_names(model)
        sizes = {name: parameter.numel() for name, parameter in named.items()}
        names = bucketed(list(sizes), sizes, bucket_cap_mb)
        self._buckets = [[named[name] for name in own] for own in names]
        self._hook: Callable[[object, Any], object] = lambda state, bucket: None

    def register_comm_hook(self, state: object, hook: Callable[[object, Any], object]) -> None:
        self._hook = hook

    def _made(self) -> Iterator[_PredictedBucket]:
        for own in self._buckets:
            gradients = own[0].new_empty(sum(each.numel() for each in own), dtype=torch.float32)
            yield _PredictedBucket(gradients, own, own is self._buckets[-1])

    def forward(self) -> SimpleNamespace:
        for bucket in self._made():
            self._hook(None, bucket)
        return SimpleNamespace(loss=torch.zeros(()))


def traced_programs(
    setup: ParallelSetup, part: ModelPart, world: World
) -> tuple[dict[int, RankProgram[Any]], Callable[[], int]]:
    """Each rank's program of a step of `setup.parallel`, and a function that returns the number of buckets
    once the programs have run."""
    module, config = part.module(), setup.parallel
    made: Sharded | Pipeline | DataParallel
    if isinstance(config, PipelineConfig):
        assert isinstance(part, StagesPart)
        accelerator = cast(Accelerator, _WithoutValues(part.tensor_parallel))
        made = Pipeline(setup, module, accelerator, world)
        batches = [part.micro_batch()] * setup.accumulation
    else:
        accelerator, batches = cast(Accelerator, _WithoutValues()), [{}]
        if isinstance(config, ShardedConfig):
            made = Sharded(setup, module, accelerator, world)
            made.make_buckets(list(parameter_names(module)))
        else:
            ddp = cast(DistributedDataParallel, _BucketedPass(module, config.bucket_cap_mb))
            made = DataParallel(setup, module, accelerator, world, ddp)
    programs = made.programs(0, dict.fromkeys(world.ranks, batches), 0.0)
    return dict(programs), lambda: len(made.layout(0))
