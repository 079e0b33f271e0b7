"""The held-out metrics, computed by all ranks together, the same numbers for any number of ranks."""

from __future__ import annotations

import math

import torch
from torch import nn

from gradwire.harness.comm.world.interface import World
from gradwire.harness.objectives.interface import Objective
from gradwire.harness.runtime.heartbeat import beat


def evaluate(model: nn.Module, objective: Objective, world: World, micro_batch: int) -> dict[str, float]:
    """The objective's metrics on the held-out split, by their keys in METRICS.

    Batch b is computed by rank b mod n and the float64 sums are added in batch order. Nothing is
    drawn at random, and training mode is restored.
    """
    num_batches = math.ceil(len(objective.data.held_out) / micro_batch)
    rounds = math.ceil(num_batches / world.size)
    width = objective.num_sums
    model.eval()
    try:
        rows = {
            rank: [
                value
                for index in range(rounds)
                for value in _batch_sums(model, objective, index * world.size + rank, micro_batch, world)
            ]
            for rank in world.ranks
        }
    finally:
        model.train()
    gathered = world.gather(rows)
    in_order = [gathered[b % world.size][width * (b // world.size) :][:width] for b in range(num_batches)]
    return objective.metrics([sum(column) for column in zip(*in_order, strict=True)])


def _batch_sums(
    model: nn.Module, objective: Objective, batch: int, micro_batch: int, world: World
) -> tuple[float, ...]:
    """The sums of held-out batch `batch`; zeros past the end."""
    beat()
    start, stop = batch * micro_batch, min((batch + 1) * micro_batch, len(objective.data.held_out))
    if start >= stop:
        return (0.0,) * objective.num_sums
    return objective.evaluate(model, torch.arange(start, stop, device="cpu"), world.device)
