"""The held-out metrics of a model in stages: each replica's stages compute a batch together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import World
from gradwire.harness.models.stages import Stage
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.timing.trace.step import MEASURE

Sums = tuple[float, ...]


def evaluate_stages(
    stages: Mapping[int, Stage], num_stages: int, objective: Objective, world: World, micro_batch: int
) -> dict[str, float]:
    """The objective's metrics on the held-out split, by their keys in METRICS, on every rank.

    Batch b is computed by replica b mod replicas; the last stage's float64 sums are added in batch order.
    """
    replicas = world.size // num_stages
    num_batches = math.ceil(len(objective.data.held_out) / micro_batch)
    rounds = math.ceil(num_batches / replicas)
    rows: dict[int, list[float]] = {rank: [] for rank in world.ranks}
    for stage in stages.values():
        stage.eval()
    try:
        for index in range(rounds):
            found = world.run(
                {
                    rank: partial(
                        _batch_sums,
                        stages[rank // replicas],
                        objective,
                        (index * replicas + rank % replicas) * micro_batch,
                        micro_batch,
                    )
                    for rank in world.ranks
                }
            )
            for rank, sums in found.items():
                rows[rank] += sums
    finally:
        for stage in stages.values():
            stage.train()
    gathered, width = world.gather(rows)[-replicas:], objective.num_sums  # those of the last stage
    in_order = [gathered[b % replicas][width * (b // replicas) :][:width] for b in range(num_batches)]
    return objective.metrics([sum(column) for column in zip(*in_order, strict=True)])


async def _batch_sums(
    stage: Stage, objective: Objective, start: int, micro_batch: int, comm: ScheduledCollectives
) -> Sums:
    """The sums of the held-out rows from `start` on in the last stage; zeros in the others and past the
    end."""
    beat()
    zeros, stop = (0.0,) * objective.num_sums, min(start + micro_batch, len(objective.data.held_out))
    if start >= stop:
        return zeros
    replica, device = comm.group("stage").in_phase(MEASURE), next(stage.parameters()).device
    indices = torch.arange(start, stop, device="cpu")
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
