"""A toy of pipeline parallelism: each rank is a stage that multiplies by a weight of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import RankProgram, RankStep, Started
from gradwire.harness.comm.world.process import Connections, ProcessWorld

FABRIC = Fabric(partial(make_schedule, "ring"))
SHAPE = (2, 3, 4)
"""The shape of a micro-batch's activations."""

Passes = Sequence[tuple[str, int]]
"""(`forward` or `backward`, micro-batch), in the order of a stage."""
Takes = Callable[[str], None]
"""Called with each pass while it is computed."""


def all_forwards_first(stage: int, stages: int, batches: int) -> Passes:
    """GPipe's order."""
    return [(kind, batch) for kind in ("forward", "backward") for batch in range(batches)]


def one_forward_one_backward(stage: int, stages: int, batches: int) -> Passes:
    """1F1B: no stage holds more activations than there are stages behind it, and its own."""
    ahead = min(stages - 1 - stage, batches)
    found = [("forward", batch) for batch in range(ahead)]
    for batch in range(batches):
        if ahead + batch < batches:
            found.append(("forward", ahead + batch))
        found.append(("backward", batch))
    return found


ORDERS = {"all forwards first": all_forwards_first, "1F1B": one_forward_one_backward}


def weight(stage: int) -> float:
    return 1.0 + stage / 2


def micro_batch(number: int) -> Tensor:
    return torch.arange(24, dtype=torch.float32).view(SHAPE) + number


def program(order: str, stages: int, batches: int, takes: Takes) -> RankProgram[float]:
    """A step of a stage; it returns the gradient of its weight if the loss is the sum of what the last stage
    gives."""

    async def run(step: RankStep) -> float:
        stage, gradient = step.rank, 0.0
        passes = ORDERS[order](stage, stages, batches)
        inputs: dict[int, Tensor] = {}
        coming: list[Started[Tensor] | None] = []
        sent: list[Started[None]] = []

        def receive_before(end: int) -> None:
            """Starts to receive early, so that messages come while the stage computes earlier passes."""
            for kind, _ in passes[len(coming) : end]:
                source = stage - 1 if kind == "forward" else stage + 1
                there = 0 <= source < stages
                coming.append(step.receive(torch.empty(SHAPE), source) if there else None)

        for index, (kind, batch) in enumerate(passes):
            receive_before(index + 2)
            message, target = coming[index], stage + 1 if kind == "forward" else stage - 1
            if message is not None:
                given = await message
            else:
                given = micro_batch(batch) if kind == "forward" else torch.ones(SHAPE)
            with step.compute(f"{kind} {batch}"):
                takes(kind)
                if kind == "forward":
                    inputs[batch] = given
                else:
                    gradient += float((inputs.pop(batch) * given).sum())
                made = given * weight(stage)
            if 0 <= target < stages:
                sent.append(step.send(made, target, is_own=True))
        for each in sent:
            await each
        return gradient

    return run


def gradients(stages: int, batches: int) -> list[float]:
    """The gradients that the stages must return."""
    weights = torch.tensor([weight(stage) for stage in range(stages)], requires_grad=True)
    loss = sum((micro_batch(batch).sum() for batch in range(batches)), torch.zeros(())) * weights.prod()
    (found,) = torch.autograd.grad(loss, [weights])
    return list(map(float, found))


def pipeline_rank(rank: int, size: int, order: str, batches: int) -> tuple[float, Mapping[str, int], Any]:
    """A stage in a process of its own: the gradient of its weight, its bytes by phase, and of its step what
    it computed and which messages it had."""
    world = ProcessWorld(FABRIC, torch.device("cpu"), Connections(timeout_s=30), spans=True, trace=True)
    try:
        for step in range(2):
            made = program(order, size, batches, lambda kind: None)
            ended = world.run_step(step, {rank: made})
        world.settle()
        notes, recorder = world.take_notes()[rank], world.recorders[rank]
        trace = notes.resolve(0.0, 0.0, recorder.seconds)
        return ended.results[rank], dict(world.traffic[rank].by_phase), trace
    finally:
        world.close()
