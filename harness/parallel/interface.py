"""The interface between the trainer, which controls time, and a parallelism, which executes the step."""

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
    """A batch whose number of counted labels differs from the average of the step's micro-batches.

    Its loss and gradient, means over its own labels, are multiplied by its weight: see `passes.weighted`.
    """

    def __init__(self, batch: Batch, weight: float) -> None:
        super().__init__(batch)
        self.weight = weight


ReadPart = Callable[[str], dict[str, Tensor]]
"""The tensors of one part of a checkpoint, on the device of the model; empty if it had none."""


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one optimizer step.

    `losses` maps each hosted rank to the mean loss of its micro-batches. `simulated_s` is the step's length
    on the simulated clock, None if real time is measured. `logged` holds the codec's figures to record,
    `decision` its decision for the next step, empty if it makes none.
    """

    losses: Mapping[int, float]
    grad_norm: float
    skipped: bool
    simulated_s: float | None
    logged: Mapping[str, float]
    decision: Decision = field(default_factory=dict)


@dataclass(frozen=True)
class ParallelSetup:
    """The settings of a run that its parallelism needs.

    `codec` holds the codec's name and options for `make_codec`, `accumulation` the number of micro-batches of
    each worker in a step.
    """

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
        """Makes discarded passes, codec included, that settle the bucket layout; then restores all state."""
        ...

    replicas: int
    """The number of copies of the model that are trained on data of their own."""

    def replica(self, rank: int) -> int:
        """The number of the model copy that `rank` belongs to, which determines its share of the data."""
        ...

    def group(self, rank: int) -> int:
        """The 0-based number of the group of ranks that synchronize the same parameters as `rank`."""
        ...

    def layout(self, rank: int) -> tuple[Layout, ...]:
        """The frozen buckets of `rank`, a rank of this process, in the order in which they are
        synchronized.
        """
        ...

    def step(self, step: int, batches: MicroBatches, learning_rate: float, measured: bool) -> StepOutcome:
        """Forward and backward passes, synchronization, clipping and update. `measured` keeps the gradients
        for `gradient_error`."""
        ...

    def gradient_error(self) -> GradientError:
        """The error of the last step's synchronization, which must have been `measured`; its time is not
        counted."""
        ...

    def raw_gradients(self) -> Tensor:
        """All workers' gradients of the last step before synchronization, which must have been `measured`:
        (workers, coordinates) on the CPU, in the order of `layout()`. All ranks must call it; its time is not
        counted."""
        ...

    def evaluate(self, objective: Objective, micro_batch: int) -> dict[str, float]:
        """The objective's metrics on the held-out split, by their keys in METRICS. All processes must call
        it, after `finish`."""
        ...

    def whole_model(self) -> nn.Module | None:
        """The plain model with all its parameters, to be saved, in the process of rank 0; None in others. All
        processes must call it, after `finish`."""
        ...

    def finish(self) -> None:
        """Completes pending updates, and gives all ranks the same buffers. All processes must call it before
        evaluation and checkpoints."""
        ...

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """This process's parts of a checkpoint: from part to tensors by parameter name.

        They hold everything that a step changes: model, optimizer, codecs. One rank writes the parts that are
        the same on all ranks. State of a single rank is in a part named after the rank, which is the same in
        every world. For a collective that a later step awaits, they hold its place and its result
        (`World.resumed`).
        """
        ...

    def load_state_dict(self, read: ReadPart) -> None:
        """Loads the state of a checkpoint. Called after `warm_up`, because the state belongs to the settled
        layout.

        Raises ValueError if it belongs to another model.
        """
        ...


@runtime_checkable
class KeepsRawBuckets(Protocol):
    """A parallelism whose workers' gradients can be read one worker at a time."""

    def raw_buckets(self, rank: int) -> list[Tensor]:
        """A hosted rank's gradients of the last step before synchronization: (numel,) for each bucket of
        `layout(rank)`. The step must have been `measured`; the time of this call is not counted."""
        ...


@runtime_checkable
class KeepsMainWeights(Protocol):
    """A parallelism whose main weights are more precise than the model's. Both are returned as (numel,)
    float32 on the CPU in the order of `layout()`; the time of these calls is not counted."""

    def model_weights(self) -> Tensor:
        """The model's weights, which the next step computes with."""
        ...

    def main_weights(self) -> Tensor:
        """The main weights of all shards. All processes must call it."""
        ...
