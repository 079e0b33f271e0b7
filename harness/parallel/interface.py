"""The interface between the trainer and a parallelism. The loop owns the clock, the parallelism the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from gradwire.codecs.interface import Decision, Layout
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.parallel.gradient_error import GradientError
from gradwire.harness.parallel.settings import ParallelConfig
from gradwire.harness.parallel.update import OptimizerSettings

Batch = Mapping[str, Tensor]
MicroBatches = Mapping[int, Sequence[Batch]]
"""Hosted rank -> its micro-batches of one step."""


class WeightedBatch(dict[str, Tensor]):
    """A batch that has more or fewer labels that count than the step's micro-batches have on average.

    Its loss and gradient, means over its own labels, weigh so many times what those of any other `Batch` do:
    see `passes.weighted`.
    """

    def __init__(self, batch: Batch, weight: float) -> None:
        super().__init__(batch)
        self.weight = weight


ReadPart = Callable[[str], dict[str, Tensor]]
"""The tensors of one part of a checkpoint, on the device of the model; empty if it had none."""


@dataclass(frozen=True)
class StepOutcome:
    """One optimizer step.

    `losses`: hosted rank to mean loss of its micro-batches. `simulated_s`: the step's length on the simulated
    clock, None if the wall clock counts. `logged`: what the codec wants recorded. `decision`: what it follows
    in the next step, empty if it makes no decisions.
    """

    losses: Mapping[int, float]
    grad_norm: float
    skipped: bool
    simulated_s: float | None
    logged: Mapping[str, float]
    decision: Decision = field(default_factory=dict)


@dataclass(frozen=True)
class ParallelSetup:
    """The settings of a run that its parallelism needs. `codec`: its name and options, for `make_codec`.
    `accumulation`: micro-batches of each worker in a step."""

    model: ModelConfig
    parallel: ParallelConfig
    codec: Mapping[str, Any]
    topology: str
    workers: int
    device: str
    accumulation: int
    optimizer: OptimizerSettings
    seed: int
    check_hashes: bool


class Parallelism(Protocol):
    """Owns the model's gradients, their synchronization and the optimizer."""

    settling_passes: int
    """The number of passes before `layout` is final."""

    def warm_up(self, batches: MicroBatches, passes: int) -> None:
        """Makes discarded passes, codec included, that settle the bucket layout; restores all state."""
        ...

    replicas: int
    """The number of copies of the model that are trained on data of their own."""

    def replica(self, rank: int) -> int:
        """The number of the copy that `rank` belongs to: it gets that one's share of the data."""
        ...

    def group(self, rank: int) -> int:
        """The number of the group of ranks that synchronize the same parameters as `rank`, from 0 on."""
        ...

    def layout(self, rank: int) -> tuple[Layout, ...]:
        """The frozen buckets of the group of `rank`, a rank of this process, in the order in which they are
        synchronized."""
        ...

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        """Forward, backward, synchronization, clipping and update. `measured` keeps the gradients."""
        ...

    def gradient_error(self) -> GradientError:
        """The error of the last step's synchronization if it was `measured`; off the clock."""
        ...

    def raw_gradients(self) -> Tensor:
        """All workers' gradients of the last step before synchronization, if it was `measured`: (workers,
        coordinates) on the CPU, in the order of `layout()`. All ranks call it, off the clock."""
        ...

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        """The objective's metrics on the held-out split, by their keys in METRICS. All processes call it,
        after `finish`."""
        ...

    def whole_model(self) -> nn.Module | None:
        """The plain model with all its parameters, to be saved, in the process of rank 0; all processes call
        it, after `finish`."""
        ...

    def finish(self) -> None:
        """Completes whatever is pending, and gives all ranks the same buffers; all processes call it before
        evaluation and checkpoints."""
        ...

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """This process's parts of a checkpoint: part to tensors by parameter name.

        They hold all that a step changes: model, optimizer, codecs. One rank's part holds what is the same on
        all ranks. What belongs to a rank is a part named after it, which is the same in every world. Of a
        collective that a later step awaits they hold its place and its result (`World.resumed`).
        """
        ...

    def load_state_dict(self, read: ReadPart) -> None:
        """Loads the state of a checkpoint, after `warm_up`, which settles the layout it belongs to.

        Raises ValueError if it belongs to another model.
        """
        ...


@runtime_checkable
class KeepsRawBuckets(Protocol):
    """A parallelism whose workers' own gradients can be looked at one by one."""

    def raw_buckets(self, rank: int) -> list[Tensor]:
        """A hosted rank's gradients of the last step before synchronization, if it was `measured`: (numel,)
        for each bucket of `layout(rank)`, off the clock."""
        ...


@runtime_checkable
class KeepsMainWeights(Protocol):
    """A parallelism whose main weights are more exact than the model's. Both are taken off the clock:
    (numel,) float32 on the CPU in the order of `layout()`."""

    def model_weights(self) -> Tensor:
        """Those that the next step computes with."""
        ...

    def main_weights(self) -> Tensor:
        """Those of all shards; all processes call it."""
        ...
