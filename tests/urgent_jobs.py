"""A step in which a rank sends another one much that is not urgent, and then little that is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import RankProgram, RankStep, Started, Submission
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.timing.trace.step import ORDINARY, Urgency

FABRIC = Fabric(partial(make_schedule, "ring"))
MUCH, LITTLE = 400, 100
"""The bytes of the two messages."""
BEFORE_S, BETWEEN_S = 1.0, 0.25


def program(later: Urgency, takes: Callable[[float], None]) -> RankProgram[None]:
    """Rank 0 starts to send much, `later`, and a second on what it needs first: it waits for that, computes,
    and waits for the rest. `takes` gets the seconds of each computation."""

    async def run(step: RankStep) -> None:
        much = _start(step, MUCH, later)
        with step.compute("before"):
            takes(BEFORE_S)
        little = _start(step, LITTLE, ORDINARY)
        await little
        with step.compute("between"):
            takes(BETWEEN_S)
        await much

    return run


def _start(step: RankStep, num_bytes: int, urgency: Urgency) -> Started[Any]:
    def make(x: Tensor) -> Any:
        async def collective(comm: ScheduledCollectives) -> None:
            await (comm.send(x, 1) if comm.rank == 0 else comm.receive(x, 0))

        return collective

    x = torch.zeros(num_bytes, dtype=torch.uint8)
    return step.start(
        make, x, Submission(buffers=str(num_bytes), coordinates=num_bytes, is_own=True, urgency=urgency)
    )


def urgent_rank(rank: int, size: int, later: Urgency) -> list[set[Urgency]]:
    """The step in a process of its own: how urgent its trace says the messages of each collective are."""
    world = ProcessWorld(FABRIC, torch.device("cpu"), Connections(timeout_s=30), spans=True, trace=True)
    try:
        world.run_step(0, {rank: program(later, lambda seconds: None)})
        world.settle()
        world.state_dict()  # all has been awaited
        trace = world.take_notes()[rank].resolve(0.0, 0.0, world.recorders[rank].seconds)
        return [{one.urgency for one in task.operations if hasattr(one, "urgency")} for task in trace.tasks]
    finally:
        world.close()
