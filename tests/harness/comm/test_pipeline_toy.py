"""Pipelines through the world's interface: ranks that differ, and messages from one rank to another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from given_times import given_world
from pipeline_jobs import FABRIC, ORDERS, SHAPE, gradients, pipeline_rank, program
from pool import Workers

from gradwire.harness.comm.world.interface import RankStep, Submission
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.network.links import Links, star, unlimited
from gradwire.harness.timing.simulate.window import StepWindow
from gradwire.harness.timing.trace.chrome import chrome_events
from gradwire.harness.timing.trace.files import read_traces
from gradwire.harness.timing.trace.step import TRANSFERS, Post, TaskTrace, lane_shape, step_end
from gradwire.harness.timing.trace.writer import TraceWriter

SECONDS = {"forward": 0.1, "backward": 0.23}
NUM_BYTES = 4 * math.prod(SHAPE)
RATE, LATENCY_S = 7e3, 0.013


def run(order: str, stages: int, batches: int, links: Links, steps: int = 1) -> tuple[VirtualWorld, float]:
    """The world after some steps, and the length of the last one."""
    world, clock = given_world(stages, FABRIC, links)
    for step in range(steps):
        made = program(order, stages, batches, lambda kind: clock.passes(SECONDS[kind]))
        ended = world.run_step(step, dict.fromkeys(range(stages), made))
        assert list(ended.results.values()) == pytest.approx(gradients(stages, batches))
    assert ended.simulated_s is not None
    return world, ended.simulated_s


def messages(task: TaskTrace) -> list[Any]:
    return [(one.sends, one.receives) for one in task.operations if isinstance(one, Post)]


def close(seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-12, rel=0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("stages", "batches"), [(1, 3), (2, 1), (2, 5), (3, 4), (4, 8), (5, 3)])
def test_a_step_takes_as_long_as_its_slots(order: str, stages: int, batches: int) -> None:
    _, length = run(order, stages, batches, unlimited())
    assert length == close((batches + stages - 1) * sum(SECONDS.values()))


@pytest.mark.parametrize("order", ORDERS)
def test_activations_take_time_and_are_counted(order: str) -> None:
    """Each micro-batch passes all links twice, one after another."""
    world, length = run(order, 3, 1, star(3, RATE, LATENCY_S), steps=2)
    assert length == close(3 * sum(SECONDS.values()) + 4 * (NUM_BYTES / RATE + LATENCY_S))
    sent = [dict(world.traffic[rank].by_phase) for rank in range(3)]
    assert sent == [{"activations": 2 * NUM_BYTES * links} for links in (1, 2, 1)]


def test_activations_hide_behind_other_micro_batches() -> None:
    """A message takes less than a forward pass: after the first one the second stage never waits for one."""
    message_s = NUM_BYTES / 2e3
    assert message_s < SECONDS["forward"]
    _, length = run("all forwards first", 2, 4, star(2, 2e3, 0.0))
    assert length == close(5 * sum(SECONDS.values()) + 2 * message_s)


def test_it_is_written_read_and_drawn(tmp_path: Path) -> None:
    world, length = run("1F1B", 3, 4, star(3, RATE, LATENCY_S))
    writer = TraceWriter(tmp_path)
    for rank, own in world.measured.items():
        writer.add(rank, {0: own})
    ((_, trace),) = read_traces(tmp_path, 3)
    for rank, own in trace.items():
        assert lane_shape(own.computation) == lane_shape(world.measured[rank].computation)
        assert {task.bucket for task in own.tasks} == {TRANSFERS}
    assert world.clock is not None
    assert step_end(StepWindow(world.clock).step(0, trace)) == pytest.approx(length, abs=1e-6)
    names = {event["name"] for event in chrome_events(world.timed) if event["ph"] == "X"}
    assert {"forward 3", "backward 0", f"activations 1→2 {NUM_BYTES} B"} <= names


@pytest.mark.parametrize("order", ORDERS)
def test_real_stages_do_the_same(order: str, workers: Workers) -> None:
    world, _ = run(order, 3, 4, unlimited(), steps=2)
    found = workers(3)(pipeline_rank, order, 4)
    assert [gradient for gradient, _, _ in found] == pytest.approx(gradients(3, 4))
    for rank, (_, sent, trace) in enumerate(found):
        assert sent == dict(world.traffic[rank].by_phase)
        virtual = world.measured[rank]
        assert lane_shape(trace.computation) == lane_shape(virtual.computation)
        assert list(map(messages, trace.tasks)) == list(map(messages, virtual.tasks))
        assert all(task.bucket == TRANSFERS for task in trace.tasks)


def test_messages_may_cross_collectives_of_all_ranks() -> None:
    """A rank receives messages in the order they were sent, whatever it starts before, in between and
    after."""

    async def run(step: RankStep) -> list[float]:
        received, other = [], 1 - step.rank
        if step.rank:
            early = step.receive(torch.empty(1), 0)
        total = step.start(
            lambda x: lambda comm: comm.reduce([(x, "sum")]),
            torch.ones(1),
            Submission(buffers="sum", coordinates=1),
        )
        sent = [step.send(torch.tensor([value + step.rank]), other) for value in (1.0, 2.0)]
        if step.rank:
            received.append(float(await early))
        while len(received) < 2:
            received.append(float(await step.receive(torch.empty(1), other)))
        (found,) = await total
        for each in sent:
            await each
        return [*received, float(found)]

    world, _ = given_world(2, FABRIC, star(2, RATE, LATENCY_S))
    assert world.run_step(0, {0: run, 1: run}).results == {0: [2.0, 3.0, 2.0], 1: [1.0, 2.0, 2.0]}


def test_a_message_that_nobody_receives_is_an_error() -> None:
    async def run(step: RankStep) -> None:
        if step.rank == 0:
            step.send(torch.ones(1), 1)

    world, _ = given_world(2, FABRIC, unlimited())
    problem = (
        r"stuck: ranks \[0\] wait for message 0 from rank 0 to rank 1, which ranks \[1\] have not started"
    )
    with pytest.raises(RuntimeError, match=problem):
        world.run_step(0, {0: run, 1: run})


def test_stages_with_a_message_of_no_bytes() -> None:
    async def run(step: RankStep) -> None:
        await (step.send(torch.ones(0), 1) if step.rank == 0 else step.receive(torch.empty(0), 0))

    world, _ = given_world(2, FABRIC, star(2, RATE, LATENCY_S))
    assert world.run_step(0, {0: run, 1: run}).simulated_s == 0.0
