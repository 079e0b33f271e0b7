"""The held-out loss, computed by all ranks together, the same number for any number of ranks."""

from __future__ import annotations

import math

import torch
from torch import nn

from gradwire.harness.comm.world.interface import World
from gradwire.harness.data.batches import IGNORED, make_batch
from gradwire.harness.data.packing import TokenData
from gradwire.harness.runtime.heartbeat import beat


def evaluate(model: nn.Module, data: TokenData, objective: str, world: World, micro_batch: int) -> float:
    """Mean negative log-likelihood per predicted token of the held-out split, in nat.

    Batch b is computed by rank b mod n and the float64 sums are added in batch order. Nothing is
    drawn at random, and training mode is restored.
    """
    num_batches = math.ceil(len(data.held_out) / micro_batch)
    rounds = math.ceil(num_batches / world.size)
    model.eval()
    try:
        rows = {
            rank: [
                value
                for index in range(rounds)
                for value in _batch_sums(
                    model, data, objective, index * world.size + rank, micro_batch, world
                )
            ]
            for rank in world.ranks
        }
    finally:
        model.train()
    gathered = world.gather(rows)
    in_order = [gathered[b % world.size][2 * (b // world.size) :][:2] for b in range(num_batches)]
    total, count = (sum(column) for column in zip(*in_order, strict=True))
    return float(total / count)


@torch.no_grad()
def _batch_sums(
    model: nn.Module, data: TokenData, objective: str, batch: int, micro_batch: int, world: World
) -> tuple[float, float]:
    """(sum of negative log-likelihoods, predicted tokens) of held-out batch `batch`; zeros past the end."""
    beat()
    start, stop = batch * micro_batch, min((batch + 1) * micro_batch, len(data.held_out))
    if start >= stop:
        return 0.0, 0.0
    indices = torch.arange(start, stop)
    inputs = make_batch(data, indices, objective, generator_key=(), split="held_out")
    labels = inputs["labels"][:, 1:] if objective == "causal" else inputs["labels"]
    count = int((labels != IGNORED).sum())
    loss = model(**{key: value.to(world.device) for key, value in inputs.items()}).loss
    return float(loss.double()) * count, float(count)


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
