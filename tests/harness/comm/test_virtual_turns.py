"""Ranks that share a process take turns, and get the results that each would get by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
import torch
from torch import Tensor

from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.ring import ring
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission
from gradwire.harness.comm.world.virtual import VirtualWorld

SIZE, STAGES = 4, 2


@pytest.fixture
def world() -> Iterator[VirtualWorld]:
    with closing(VirtualWorld(SIZE, Fabric(ring, stages=STAGES), torch.device("cpu"))) as made:
        yield made


def summed(x: Tensor) -> Collective[Tensor]:
    async def run(comm: ScheduledCollectives) -> Tensor:
        (total,) = await comm.group("replica").reduce([(x, "sum")])
        return total

    return run


async def by_stages(updates: list[tuple[int, float]], rank_step: RankStep) -> float:
    """Each stage's ranks update its only weight together; the second stage's bucket is the larger one."""
    stage = rank_step.rank // (SIZE // STAGES)
    x = torch.full((1 + 9 * stage,), float(rank_step.rank))
    total = await rank_step.start(
        summed, x, Submission(buffers="gradient", coordinates=x.numel(), is_own=True)
    )

    def update() -> float:
        updates.append((stage, float(total[0])))
        return float(total[0])

    with rank_step.compute("update"):
        return rank_step.replicated(update, group=stage)


def test_each_group_does_its_own_work_once(world: VirtualWorld) -> None:
    updates: list[tuple[int, float]] = []
    ended = world.run_step(0, dict.fromkeys(world.ranks, partial(by_stages, updates)))
    assert updates == [(0, 1.0), (1, 5.0)]
    assert ended.results == {0: 1.0, 1: 1.0, 2: 5.0, 3: 5.0}


def test_traces_have_each_ranks_own_size(world: VirtualWorld) -> None:
    """A codec's modelled time depends on that size."""
    world.run_step(0, dict.fromkeys(world.ranks, partial(by_stages, [])))
    assert [task.coordinates for rank in world.ranks for task in world.timed[rank].tasks] == [1, 1, 10, 10]


def test_a_barrier_that_a_rank_never_reaches_is_an_error(world: VirtualWorld) -> None:
    async def run(rank_step: RankStep) -> None:
        if rank_step.rank:
            await rank_step.barrier()

    with pytest.raises(RuntimeError, match=r"stuck: ranks \[1, 2, 3\] wait for ranks that have ended"):
        world.run_step(0, dict.fromkeys(world.ranks, run))
