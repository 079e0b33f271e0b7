"""Schedules whose messages are cut into segments are correct all-reduces, too."""

import dataclasses
from collections import defaultdict

import pytest

from gradwire.harness.comm.topology.check import check_schedule, chunks_sent
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.comm.topology.schedule import Schedule, Step, last_needed, pipelined

SEGMENTS = [1, 2, 3, 4, 8]
SIZES = {1: range(1, 9), 2: range(1, 20), 3: range(1, 18), 4: range(1, 18), 8: range(1, 11)}
LARGE = {1: (31, 48, 64), 2: (31, 48, 64), 3: (31,), 4: (48,), 8: (31,)}
"""The whole schedules are checked for every size up to 64; time grows with the segments."""

every_topology = pytest.mark.parametrize("name", sorted(TOPOLOGIES))


@every_topology
@pytest.mark.parametrize("segments", SEGMENTS)
def test_pipelined_schedule_is_an_all_reduce(name: str, segments: int) -> None:
    for size in (*SIZES[segments], *LARGE[segments]):
        whole = make_schedule(name, size)
        schedule = pipelined(whole, segments)
        check_schedule(schedule)
        assert (schedule.segments, schedule.num_chunks) == (segments, segments * whole.num_chunks)
        assert chunks_sent(schedule) == [segments * count for count in chunks_sent(whole)]
        assert schedule.gradients_sent == whole.gradients_sent


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (2, 3), (4, 2), (3, 3), (3, 1)])
def test_two_levels_are_cut_on_any_nodes(nodes: int, local: int, segments: int) -> None:
    whole = make_schedule("two_level", nodes * local, nodes)
    schedule = pipelined(whole, segments)
    check_schedule(schedule)
    assert chunks_sent(schedule) == [segments * count for count in chunks_sent(whole)]


@every_topology
def test_one_segment_is_the_schedule_itself(name: str) -> None:
    schedule = make_schedule(name, 5)
    assert pipelined(schedule, 1) is schedule


@every_topology
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 13])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_between_two_ranks_messages_are_received_in_the_order_they_are_sent(
    name: str, size: int, segments: int
) -> None:
    """NCCL matches messages by this order, whatever else is in flight."""
    sent, received = defaultdict(list), defaultdict(list)
    for rank, steps in enumerate(pipelined(make_schedule(name, size), segments).ranks):
        for step in steps:
            for send in step.sends:
                sent[rank, send.peer].append((send.chunks, send.workers))
            for receive in step.receives:
                received[receive.peer, rank].append((receive.chunks, receive.workers))
    assert sent == received


def test_a_ring_passes_a_segment_on_without_the_others() -> None:
    schedule = pipelined(make_schedule("ring", 4), 3)
    for steps in schedule.ranks:
        assert len(steps) == 6 * 3
        assert last_needed(steps) == [-1, -1, -1, *range(15)]


def test_a_butterfly_needs_only_the_segments_it_passes_on() -> None:
    """With four segments of each of four chunks, a rank keeps eight chunks and gives away eight, as four
    segments of two."""
    steps = pipelined(make_schedule("butterfly", 8), 4).ranks[7]
    assert [step.sends[0].chunks for step in steps[:4]] == [range(i, i + 4) for i in (0, 4, 8, 12)]
    assert [step.sends[0].chunks for step in steps[4:8]] == [range(i, i + 2) for i in (16, 18, 20, 22)]
    assert last_needed(steps)[:8] == [-1, -1, -1, -1, 0, 0, 1, 1]
    assert steps[0].receives[0].actions == (("inner", range(16, 18)), ("inner", range(18, 20)))


def replaced(schedule: Schedule, rank: int, steps: tuple[Step, ...]) -> Schedule:
    ranks = [steps if r == rank else own for r, own in enumerate(schedule.ranks)]
    return dataclasses.replace(schedule, ranks=tuple(ranks))


def test_the_checker_finds_faults_of_segments() -> None:
    schedule = pipelined(make_schedule("ring", 3), 2)
    first, second, *rest = schedule.ranks[0]
    with pytest.raises(AssertionError, match="gets chunks"):
        check_schedule(replaced(schedule, 0, (second, first, *rest)))
    with pytest.raises(AssertionError, match="never sent"):
        check_schedule(replaced(schedule, 0, schedule.ranks[0][:-1]))
    with pytest.raises(AssertionError, match="not ready"):
        check_schedule(replaced(schedule, 0, (first, *rest)))


def test_two_messages_to_one_rank_are_two_steps() -> None:
    schedule = pipelined(make_schedule("broadcast", 2), 2)
    first, second = schedule.ranks[0]
    together = Step("all_gather", first.sends + second.sends, first.receives + second.receives)
    with pytest.raises(AssertionError, match="two messages between the same ranks"):
        check_schedule(replaced(schedule, 0, (together,)))


def test_ranks_that_all_send_first_are_found() -> None:
    """With a transport that buffers messages this would work; NCCL's wait for their receivers."""
    schedule = make_schedule("broadcast", 2)
    apart = [
        (dataclasses.replace(step, receives=()), dataclasses.replace(step, sends=()))
        for (step,) in schedule.ranks
    ]
    with pytest.raises(AssertionError, match="wait for each other"):
        check_schedule(dataclasses.replace(schedule, ranks=tuple(apart)))
