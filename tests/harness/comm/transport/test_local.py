"""The in-process driver: its log, deadlocks, cancelled coroutines, guarded buffers."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.channel import Channel, CollectiveTask, Traffic
from gradwire.harness.comm.transport.local import LocalChannel, Mailboxes, run_local
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.timing.trace.log import TaskLog
from gradwire.harness.timing.trace.step import Post, Wait, Work

Job = Callable[[Channel], Coroutine[Any, None, Any]]


def run(jobs: list[Job], debug: bool = False) -> tuple[list[Any], list[Traffic], list[TaskLog]]:
    """One coroutine per rank; their results (or exceptions), counters and logs."""
    mailboxes = Mailboxes(debug)
    results: list[Any] = [None] * len(jobs)
    traffic = [Traffic() for _ in jobs]
    logs = [TaskLog(time.perf_counter, 0, 1, 0.0) for _ in jobs]

    def task(rank: int, job: Job) -> CollectiveTask:
        def keep(outcome: Any) -> None:
            results[rank] = outcome

        channel = LocalChannel(rank, len(jobs), 0, traffic[rank], mailboxes, logs[rank])
        return CollectiveTask(job(channel), keep, keep, logs[rank])

    try:
        run_local([task(rank, job) for rank, job in enumerate(jobs)], mailboxes, time.perf_counter)
    except Exception as error:
        results.append(error)
    return results, traffic, logs


def message(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def sender(peer: int, *buffers: torch.Tensor) -> Job:
    async def run(channel: Channel) -> None:
        handles = [channel.post([(peer, buffer)], [], "reduce_scatter") for buffer in buffers]
        for handle in handles:
            await channel.completed(handle)

    return run


def receiver(peer: int, size: int, count: int) -> Job:
    async def run(channel: Channel) -> list[list[int]]:
        received = []
        for _ in range(count):
            buffer = torch.zeros(size, dtype=torch.uint8)
            await channel.completed(channel.post([], [(peer, buffer)], "reduce_scatter"))
            received.append(buffer.tolist())
        return received

    return run


def test_messages_keep_their_order_and_are_written_down() -> None:
    buffers = [torch.full((1000,), value, dtype=torch.uint8) for value in (1, 2, 3)]
    (_, received), traffic, logs = run([sender(1, *buffers), receiver(0, 1000, 3)])
    assert received == [[1] * 1000, [2] * 1000, [3] * 1000]
    assert [own.total for own in traffic] == [3000, 0]
    sent, got = (log.resolve(lambda mark: mark).operations for log in logs)
    posts = [operation for operation in sent if isinstance(operation, Post)]
    assert [post.sends for post in posts] == [((1, 1000),)] * 3
    assert [operation.number for operation in sent if isinstance(operation, Wait)] == [0, 1, 2]
    assert [type(operation) for operation in got] == [Work, Post, Work, Wait] * 3 + [Work]
    times = [operation.at if isinstance(operation, Post) else operation.end for operation in got]
    assert times == sorted(times)


def test_the_same_bytes_for_several_peers_are_written_down_as_copies() -> None:
    whole = message(1, 2, 3, 4)

    def to_both(first: torch.Tensor, second: torch.Tensor) -> Job:
        async def run(channel: Channel) -> None:
            await channel.completed(channel.post([(1, first), (2, second)], [], "all_gather"))

        return run

    for first, second, copies in (
        (whole, whole, True),
        (whole, whole.view(2, 2), True),
        (whole, whole.clone(), False),
        (whole[:2], whole[2:], False),
        (whole, whole[:2], False),
        (whole, whole[:0], False),  # the empty one is not sent
    ):
        receivers = [receiver(0, buffer.numel(), 1) for buffer in (first, second)]
        *_, logs = run([to_both(first, second), *receivers])
        posts = [found for found in logs[0].resolve(lambda mark: mark).operations if isinstance(found, Post)]
        assert [post.copies for post in posts] == [copies]


@pytest.mark.parametrize(
    ("topology", "copies"), [("broadcast", {True}), ("ring", {False}), ("butterfly", {False})]
)
def test_what_a_broadcast_sends_are_copies(topology: str, copies: set[bool]) -> None:
    schedule = Fabric(lambda size: make_schedule(topology, size))

    def job(channel: Channel) -> Coroutine[Any, None, Any]:
        layout = Layout.flat(1000)
        collectives = ScheduledCollectives(channel, schedule, Arena(torch.device("cpu")))
        this_round = Round(0, layout, channel.rank, channel.size, 0)
        return make_codec("dynamiq").synchronize(torch.ones(1000), this_round, collectives)

    results, _, logs = run([job] * 4)
    assert not any(isinstance(result, Exception) for result in results)
    found = {
        operation.copies
        for log in logs
        for operation in log.resolve(lambda mark: mark).operations
        if isinstance(operation, Post) and operation.phase != "metadata"
    }
    assert found == copies


def test_a_deadlock_names_who_waits_for_whom() -> None:
    results, *_ = run([receiver(1, 4, 1), receiver(2, 4, 1), receiver(0, 4, 1)])
    error = results.pop()
    assert isinstance(error, RuntimeError)
    assert "stuck: rank 0 for rank 1, rank 1 for rank 2, rank 2 for rank 0" in str(error)
    assert results == [error] * 3, "all that wait hear of it"
    results, *_ = run([sender(1, message(1)), receiver(0, 1, 0)])
    assert "stuck: rank 0 for rank 1 to receive" in str(results[-1])


@pytest.mark.parametrize("debug", [True, False])
def test_a_send_buffer_written_to_too_early_is_noticed(debug: bool) -> None:
    async def hasty(channel: Channel) -> None:
        buffer = message(1, 2, 3)
        handle = channel.post([(1, buffer)], [], "reduce_scatter")
        buffer.zero_()
        await channel.completed(handle)

    results, *_ = run([hasty, receiver(0, 3, 1)], debug=debug)
    if debug:
        assert "written to before the message was received" in str(results[-1])
    else:
        assert results[1] == [[0, 0, 0]], "what the check is for"


def test_a_failing_coroutine_cancels_the_others_and_keeps_its_traceback() -> None:
    closed = []

    async def failing_codec(channel: Channel) -> None:
        await channel.completed(channel.post([(1, message(1))], [], "reduce_scatter"))
        raise ValueError("the codec's own")

    async def waiting(channel: Channel) -> None:
        try:
            buffer = message(0)
            await channel.completed(channel.post([], [(0, buffer)], "reduce_scatter"))
            await channel.completed(channel.post([], [(0, buffer)], "reduce_scatter"))
        finally:
            closed.append(channel.rank)

    results, *_ = run([failing_codec, waiting])
    error = results[-1]
    assert isinstance(error, ValueError)
    assert "failing_codec" in "".join(traceback.format_exception(error))
    assert results[:2] == [error, error]
    assert closed == [1]


class Wrong:
    """fp32, whose result `spoil` then changes."""

    def __init__(self, spoil: Callable[[torch.Tensor, Round], torch.Tensor]) -> None:
        self._codec, self._spoil = make_codec("fp32"), spoil

    async def synchronize(self, x: torch.Tensor, this_round: Round, comm: Any) -> torch.Tensor:
        return self._spoil(await self._codec.synchronize(x, this_round, comm), this_round)


def synchronize_with(spoil: Callable[[torch.Tensor, Round], torch.Tensor]) -> None:
    world = VirtualWorld(3, Fabric(lambda size: make_schedule("ring", size)), torch.device("cpu"), debug=True)

    def collective(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, torch.Tensor]]:
        this_round = Round(7, Layout.flat(100), rank, 3, seed=0)
        return synchronization(Wrong(spoil), torch.ones(100), this_round, check_hashes=True)  # type: ignore[arg-type]

    world.run({rank: collective(rank) for rank in range(3)})


def test_a_result_that_does_not_fit_the_bucket_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"codec returned torch.float32\[99\] for torch.float32\[100\]"):
        synchronize_with(lambda mean, this_round: mean[1:])
    with pytest.raises(RuntimeError, match=r"codec returned torch.float64\[100\]"):
        synchronize_with(lambda mean, this_round: mean.double())


def test_hashes_find_the_rank_with_another_result() -> None:
    synchronize_with(lambda mean, this_round: mean)
    with pytest.raises(RuntimeError, match=r"step 7: ranks \[2\] hold other gradients than rank 0"):
        synchronize_with(lambda mean, this_round: mean + 1e-7 if this_round.rank == 2 else mean)
