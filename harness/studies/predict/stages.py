"""A step of pipeline parallelism on tensors without values: its own schedule, messages and synchronization.

Every rank stands for the workers of a node that share a stage's matrices: it holds and sends what one of them
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.harness.comm.world.interface import RankProgram, World
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.parallel.accumulation import Accumulation, Hooks
from gradwire.harness.parallel.interface import Batch, ParallelSetup
from gradwire.harness.parallel.pipeline.hosted import HostedStage
from gradwire.harness.parallel.pipeline.parallelism import Pipeline
from gradwire.harness.parallel.pipeline.passes import StagePasses
from gradwire.harness.parallel.pipeline.schedule import Pass
from gradwire.harness.parallel.update import Updater
from gradwire.harness.studies.predict.model import META, Part, divided, without_values


@dataclass(frozen=True)
class StagesPart(Part):
    """What the workers of a pipeline hold: `shapes` are the first stage's. Each of a step's micro-batches has
    `rows` sequences of `length` tokens; `tensor_parallel` workers share every matrix."""

    model: ModelConfig
    tensor_parallel: int
    rows: int
    length: int

    def module(self) -> nn.Module:
        """The whole model, with a worker's share of each matrix. No values."""
        whole = without_values(self.model)
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in whole.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if parameter not in made:
                        shape = divided(parameter.shape, self.tensor_parallel, self.model.hidden_size)
                        made[parameter] = nn.Parameter(torch.empty(shape, device=META))
                    module._parameters[name] = made[parameter]
        return whole

    def micro_batch(self) -> Batch:
        """The tokens of a micro-batch."""
        return {"input_ids": torch.empty(self.rows, self.length, dtype=torch.int64, device=META)}


class _Unprepared:
    """In Accelerate's place: leaves the model as it is. Losses are numbers of the CPU."""

    device = torch.device("cpu")

    def prepare_model(self, model: nn.Module, evaluation_mode: bool) -> nn.Module:
        return model


class _NoUpdate:
    """In an updater's place: there are no values to change."""

    def apply(self, rate: float, norm: float) -> None:
        pass


class _StageWithoutValues(HostedStage):
    """Its gradient has no values, and is said to have a finite norm."""

    def squares(self, without: str | None) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def _updater(self, setup: ParallelSetup) -> Updater:
        return cast(Updater, _NoUpdate())


class _PassesWithoutValues(StagePasses):
    """Passes that give tensors of the right shapes; every parameter gets its gradient in each backward pass,
    those of the last layers first."""

    async def run(self, actions: Any, accumulation: Accumulation, hooks: Hooks) -> None:
        self._hooks = hooks
        await super().run(actions, accumulation, hooks)

    def _hidden_states(self, one: Pass) -> Tensor:
        """Those of a micro-batch, or their gradients."""
        tokens = self._batches[one.micro_batch]["input_ids"]
        return torch.empty(*tokens.shape, self._stage.hidden_size, device=tokens.device)

    def _compute_forward(self, one: Pass, hidden: Tensor | None) -> None:
        if not self._stage.is_last:
            self._results[one] = self._hidden_states(one)

    def _compute_backward(self, one: Pass, gradient: Tensor | None) -> None:
        assert self._hooks.receive is not None
        for name, parameter in reversed(self._stage.named().items()):
            self._hooks.receive(name, parameter.data)
        if not self._stage.is_first:
            self._results[one] = self._hidden_states(one)


class PipelineStep(Pipeline):
    """A step of pipeline parallelism. Of hidden states each of the workers that share matrices sends its
    share, as Megatron-LM's scatter-gather does it (Narayanan et al. 2021, §4.1)."""

    hosted_type = _StageWithoutValues
    passes_type = _PassesWithoutValues

    def __init__(self, setup: ParallelSetup, part: Part, world: World) -> None:
        assert isinstance(part, StagesPart)
        super().__init__(setup, part.module(), cast(Accelerator, _Unprepared()), world)
        for held in self._hosted.values():
            held.stage.hidden_size = -(-held.stage.hidden_size // part.tensor_parallel)
        self._batches = [part.micro_batch()] * setup.accumulation

    def programs(self) -> dict[int, RankProgram[Any]]:
        """What each rank does in the step."""
        return {rank: partial(self._step_of_rank, 0, self._batches, 0.0, False) for rank in self._codecs}
