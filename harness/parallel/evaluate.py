"""The held-out metrics, computed by all replicas together; the result does not depend on the number of
replicas.

Batch b is computed by replica b mod replicas, and the float64 sums are added in batch order. No random
numbers are used, and training mode is restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import World
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.timing.trace.step import MEASURE

if TYPE_CHECKING:
    from gradwire.harness.models.stages import Stage

Sums = tuple[float, ...]


def evaluate(model: nn.Module, objective: Objective, world: World, micro_batch: int) -> dict[str, float]:
    """The objective's metrics on the held-out split, by their keys in METRICS, for ranks that each hold the
    whole model."""

    def sums(rows: range) -> Sums:
        beat()
        if not rows:
            return (0.0,) * objective.num_sums
        return objective.evaluate(model, torch.arange(rows.start, rows.stop, device="cpu"), world.device)

    def sums_of_round(rows: Mapping[int, range]) -> dict[int, Sums]:
        return {rank: sums(own) for rank, own in rows.items()}

    return _metrics([model], objective, world, micro_batch, world.size, sums_of_round)


def evaluate_stages(
    stages: Mapping[int, Stage], num_stages: int, objective: Objective, world: World, micro_batch: int
) -> dict[str, float]:
    """These metrics for a model in stages: the stages of a replica compute a batch together, and the last
    one computes its sums. All processes must call it."""
    replicas = world.size // num_stages

    def sums_of_round(rows: Mapping[int, range]) -> dict[int, Sums]:
        return world.run(
            {
                rank: partial(_stage_sums, stages[rank // replicas], objective, own)
                for rank, own in rows.items()
            }
        )

    return _metrics([*stages.values()], objective, world, micro_batch, replicas, sums_of_round)


def _metrics(
    models: Sequence[nn.Module],
    objective: Objective,
    world: World,
    micro_batch: int,
    replicas: int,
    sums_of_round: Callable[[Mapping[int, range]], Mapping[int, Sums]],
) -> dict[str, float]:
    """Adds up the results of `sums_of_round`, which gets the rows of one batch for each rank here, an empty
    range past the end."""
    num_rows, width = len(objective.data.held_out), objective.num_sums
    num_batches = math.ceil(num_rows / micro_batch)
    found: dict[int, list[float]] = {rank: [] for rank in world.ranks}
    for model in models:
        model.eval()
    try:
        for index in range(math.ceil(num_batches / replicas)):
            starts = {rank: (index * replicas + rank % replicas) * micro_batch for rank in world.ranks}
            rows = {rank: range(start, min(start + micro_batch, num_rows)) for rank, start in starts.items()}
            for rank, sums in sums_of_round(rows).items():
                found[rank] += sums
    finally:
        for model in models:
            model.train()
    gathered = world.gather(found)[-replicas:]  # of a model in stages those of the last one
    in_order = [gathered[b % replicas][width * (b // replicas) :][:width] for b in range(num_batches)]
    return objective.metrics([sum(column) for column in zip(*in_order, strict=True)])


async def _stage_sums(stage: Stage, objective: Objective, rows: range, comm: ScheduledCollectives) -> Sums:
    """The sums over held-out rows in the last stage; zeros in the other stages and for an empty range."""
    beat()
    zeros = (0.0,) * objective.num_sums
    if not rows:
        return zeros
    replica, device = comm.group("stage").in_phase(MEASURE), next(stage.parameters()).device
    indices = torch.arange(rows.start, rows.stop, device="cpu")
    batch = objective.batch(indices, split="held_out")
    hidden = None
    if not stage.is_first:
        hidden = torch.empty(*batch["input_ids"].shape, stage.hidden_size, device=device)
        await replica.receive(hidden, stage.number - 1)
    with torch.no_grad():
        output: Any = stage(hidden, **{name: value.to(device) for name, value in batch.items()})
    if stage.is_last:
        return objective.sums(output, batch, indices)
    await replica.send(output, stage.number + 1)
    return zeros
