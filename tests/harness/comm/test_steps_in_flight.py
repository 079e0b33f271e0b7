"""Collectives that one step starts and a later one awaits, and what of them a checkpoint may not lose."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from given_times import given_world
from pipeline_jobs import FABRIC
from torch import Tensor

from gradwire.harness.comm.world.interface import CollectivePlace, RankStep, Started, Submission
from gradwire.harness.comm.world.process_step import ProcessStep
from gradwire.harness.comm.world.started import StartedCollectives
from gradwire.harness.network.links import star
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.trace.log import LaneLog
from gradwire.harness.timing.trace.step import Await

RATE, LATENCY_S = 100.0, 0.125
NUM_BYTES = 80
Kept = dict[int, Started[Tensor]]


def start_sum(step: RankStep) -> Started[Tensor]:
    def make(x: Tensor) -> Any:
        async def collective(comm: Any) -> Tensor:
            (found,) = await comm.reduce([(x, "sum")])
            return found

        return collective

    return step.start(
        make, torch.ones(NUM_BYTES // 8, dtype=torch.float64), Submission(buffers="sum", coordinates=1)
    )


def test_a_result_may_be_awaited_steps_later_and_again() -> None:
    kept: Kept = {}

    async def starts(step: RankStep) -> None:
        await start_sum(step)
        kept[step.rank] = start_sum(step)

    async def awaits(step: RankStep) -> list[float]:
        with step.compute("before"):
            passing.passes(0.25)
        return [float((await kept[step.rank])[0]) for _ in range(2)]

    world, passing = given_world(2, FABRIC, star(2, RATE, LATENCY_S))
    first = world.run_step(4, dict.fromkeys(range(2), starts))
    assert kept[0].place == CollectivePlace(4, 1) and first.simulated_s is not None
    second = world.run_step(5, dict.fromkeys(range(2), awaits))
    assert second.results == {0: [2.0, 2.0], 1: [2.0, 2.0]}
    waits = [one for one in world.timed[0].computation if isinstance(one, Await)]
    assert [(one.task, one.steps_back) for one in waits] == [(1, 1)] * 2
    assert second.simulated_s == pytest.approx(first.simulated_s, abs=1e-12)  # each waits for one sum
    assert waits[1].end - waits[1].start == 0.0
    assert world.windows() == dict.fromkeys(range(2), (0.0, second.simulated_s))


def test_a_checkpoint_that_would_lose_a_result_is_refused() -> None:
    kept: Kept = {}

    async def starts(step: RankStep) -> None:
        kept[step.rank] = start_sum(step)

    world, _ = given_world(2, FABRIC, star(2, RATE, LATENCY_S))
    world.run_step(3, dict.fromkeys(range(2), starts))
    with pytest.raises(RuntimeError, match=r"^collective 0 of step 3 is in flight, and a checkpoint[^\n]*$"):
        world.state_dict()
    results = {rank: started.result() for rank, started in kept.items()}
    assert world.state_dict().keys() == {"clock"}
    resumed = {rank: world.resumed(rank, kept[rank].place, results[rank]) for rank in kept}
    with pytest.raises(RuntimeError, match="^collective 0 of step 3 is in flight"):
        world.state_dict()
    assert all(started.result() is results[rank] for rank, started in resumed.items())
    world.state_dict()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_process_knows_a_collective_until_its_result_is_taken(overlap: bool) -> None:
    world: Any = SimpleNamespace(
        rank=0,
        recorders=[Recorder(enabled=False)],
        started=StartedCollectives(),
        submit=lambda collective, submission, started: submitted.append(started),
    )
    submitted: list[Any] = []
    started = start_sum(ProcessStep(world, 3, LaneLog(), overlap))
    assert len(submitted) == overlap
    with pytest.raises(RuntimeError, match="^collective 0 of step 3 is in flight"):
        world.started.check_taken()
    if overlap:
        submitted[0].set_result(2.0)
        with pytest.raises(RuntimeError, match="^collective 0 of step 3 is in flight"):
            world.started.check_taken()
        assert started.result() == 2.0
        world.started.check_taken()


def test_what_nobody_holds_is_no_loss() -> None:
    async def starts(step: RankStep) -> None:
        start_sum(step)

    world, _ = given_world(2, FABRIC, star(2, RATE, LATENCY_S))
    world.run_step(0, dict.fromkeys(range(2), starts))
    gc.collect()
    world.state_dict()
