"""Topologies whose messages are merged or split on the way: cuts fall inside other messages."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from driven import drive, integers, watched_sum

from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.check import check_schedule
from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Send, Step, pipelined


def chain(first: list[range], second: list[range]) -> Schedule:
    """Rank 0 sends its two chunks to rank 1 as `first`, rank 1 passes the sums on to rank 2 as `second`."""
    everything = range(2)
    inner: dict[range, tuple[tuple[Action, range], ...]] = {
        chunks: tuple(("inner", part) for part in second if {*part} & {*chunks})
        if len(second) > 1
        else (("inner", chunks),)
        for chunks in first
    }
    result = Step("all_gather", (), (Receive(2, everything, 3, (("gather", everything),)),))
    return Schedule(
        "chain",
        3,
        2,
        (
            (*(Step("reduce_scatter", (Send(1, chunks, 1, "leaf"),)) for chunks in first), result),
            (
                *(Step("reduce_scatter", (), (Receive(0, chunks, 1, inner[chunks]),)) for chunks in first),
                *(Step("reduce_scatter", (Send(2, chunks, 2, "inner"),)) for chunks in second),
                result,
            ),
            (
                *(
                    Step("reduce_scatter", (), (Receive(1, chunks, 2, (("sink", chunks),)),))
                    for chunks in second
                ),
                Step("all_gather", tuple(Send(peer, everything, 3, "sealed") for peer in (0, 1))),
            ),
        ),
    )


ONE, TWO = [range(2)], [range(1), range(1, 2)]


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(("first", "second"), [(ONE, TWO), (TWO, ONE), (TWO, TWO), (ONE, ONE)])
def test_cuts_may_fall_inside_other_messages(first: list[range], second: list[range], segments: int) -> None:
    """Messages that are merged or split on the way: no action writes to two of the next ones."""
    schedule = pipelined(chain(first, second), segments)
    check_schedule(schedule)
    steps = schedule.ranks[1]
    carriers = [send.chunks for step in steps for send in step.sends]
    for action, chunks in (
        action for step in steps for receive in step.receives for action in receive.actions
    ):
        inside = [carrier for carrier in carriers if {*chunks} <= {*carrier}]
        assert action == "gather" or len(inside) == 1
    results, _ = drive(Fabric(lambda size: chain(first, second), segments=segments), 3, watched_sum(100))
    expected = sum(integers(rank, 100) for rank in range(3))
    assert all(torch.equal(result, expected) for result in results)


def test_the_checker_finds_an_action_that_writes_to_two_messages() -> None:
    schedule = chain(ONE, TWO)
    receive = dataclasses.replace(schedule.ranks[1][0].receives[0], actions=(("inner", range(2)),))
    merged = (Step("reduce_scatter", (), (receive,)), *schedule.ranks[1][1:])
    ranks = (schedule.ranks[0], merged, schedule.ranks[2])
    with pytest.raises(AssertionError, match="encodes into several messages"):
        check_schedule(dataclasses.replace(schedule, ranks=ranks))
