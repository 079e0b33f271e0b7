"""Every topology is a correct all-reduce for every world size, and sends what it should."""

import dataclasses

import pytest

from gradwire.codecs.plugins import allowed, load
from gradwire.harness.comm.topology.butterfly import near_first
from gradwire.harness.comm.topology.check import check_schedule, chunks_sent
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule

NAMES = [*sorted(TOPOLOGIES), *(name for name in allowed() if not isinstance(load("topology", name), type))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", range(1, 65))
def test_schedule_is_an_all_reduce(name: str, size: int) -> None:
    schedule = make_schedule(name, size)
    check_schedule(schedule)
    # 2(n − 1) encoded gradients in all, folded or not; every rank's own to all others in a broadcast.
    gradients = 2 * (size - 1) if schedule.sums_on_the_way else size * (size - 1)
    assert sum(chunks_sent(schedule)) == gradients * schedule.num_chunks
    assert schedule.gradients_sent == gradients


@pytest.mark.parametrize("name", NAMES)
def test_load_is_balanced(name: str) -> None:
    """All ranks send equally much, unless the topology declares otherwise; then they must not."""
    schedules = [make_schedule(name, size) for size in (2, 4, 8, 64)]
    uneven = [schedule.size for schedule in schedules if len(set(chunks_sent(schedule))) > 1]
    assert {not uneven} == {schedule.balanced for schedule in schedules}, uneven


@pytest.mark.parametrize("size", range(1, 65))
def test_two_levels_are_an_all_reduce_on_any_nodes(size: int) -> None:
    for nodes in (nodes for nodes in range(1, size + 1) if size % nodes == 0):
        schedule = make_schedule("two_level", size, nodes)
        check_schedule(schedule)
        assert len(set(chunks_sent(schedule))) == 1
        assert schedule.gradients_sent == 2 * (size - 1)
        sealed = [schedule.sealed_by(rank) for rank in range(size)]
        assert sorted(sealed) == ([(chunk,) for chunk in range(size)] if size > 1 else [()])


@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (2, 3), (4, 2), (3, 1), (1, 5), (3, 4)])
def test_two_levels_send_little_between_nodes(nodes: int, local: int) -> None:
    """A rank sends 2(N − 1)/N of an encoded gradient inside its node, 2(M − 1)/(N·M) to others."""
    schedule = make_schedule("two_level", nodes * local, nodes)
    for rank, steps in enumerate(schedule.ranks):
        sends = [send for step in steps for send in step.sends]
        inside = sum(len(send.chunks) for send in sends if send.peer // local == rank // local)
        between = sum(len(send.chunks) for send in sends) - inside
        assert inside * local == 2 * (local - 1) * schedule.num_chunks
        assert between * nodes * local == 2 * (nodes - 1) * schedule.num_chunks
        counterparts = {send.peer % local for send in sends if send.peer // local != rank // local}
        assert counterparts <= {rank % local}


def test_two_levels_need_nodes_that_are_full() -> None:
    with pytest.raises(ValueError, match="topology=two_level: 7 ranks do not fill 2 nodes"):
        make_schedule("two_level", 7, 2)


def test_a_topology_without_nodes_is_not_told_of_them() -> None:
    assert make_schedule("ring", 6, 2) == make_schedule("ring", 6)


def test_what_collects_is_a_broadcast() -> None:
    assert [name for name in sorted(TOPOLOGIES) if not make_schedule(name, 4).sums_on_the_way] == [
        "broadcast"
    ]


@pytest.mark.parametrize("size", [4, 8])
def test_hops(size: int) -> None:
    assert len(make_schedule("ring", size).ranks[0]) == 2 * (size - 1)
    assert len(make_schedule("butterfly", size).ranks[0]) == 2 * (size.bit_length() - 1)


@pytest.mark.parametrize("size", range(1, 65))
def test_near_ranks_exchange_first(size: int) -> None:
    """The way of metadata has 2·⌈log2 n⌉ hops, in blocks of consecutive ranks that double."""
    schedule = near_first(size)
    check_schedule(schedule)
    assert schedule.gradients_sent == 2 * (size - 1)
    assert max(map(len, schedule.ranks)) == 2 * (size - 1).bit_length()
    core, sent = 1 << (size.bit_length() - 1), chunks_sent(schedule)
    assert schedule.num_chunks == core
    extras = [rank for rank, steps in enumerate(schedule.ranks) if steps and not steps[0].receives]
    assert len(extras) == size - core
    for rank, steps in enumerate(schedule.ranks):
        takes_in = rank + 1 in extras
        expected = core if rank in extras else 2 * (core - 1) + core * takes_in
        assert sent[rank] == expected, "a folded rank sends all chunks, its partner all sums in addition"
        assert rank not in extras or {send.peer for step in steps for send in step.sends} == {rank - 1}


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("local", [1, 2, 3, 5, 6, 8])
def test_near_ranks_leave_their_node_last(nodes: int, local: int) -> None:
    """On a power of two of nodes, as little leaves them as an all-reduce between nodes sends."""
    schedule = near_first(nodes * local)
    sends = [
        (rank, send) for rank, steps in enumerate(schedule.ranks) for step in steps for send in step.sends
    ]
    between = [len(send.chunks) for rank, send in sends if send.peer // local != rank // local]
    assert sum(between) == 2 * (nodes - 1) * schedule.num_chunks


def test_the_checker_finds_faults() -> None:
    schedule = make_schedule("ring", 4)
    swapped = dataclasses.replace(schedule, ranks=(schedule.ranks[1], schedule.ranks[0], *schedule.ranks[2:]))
    shortened = dataclasses.replace(schedule, ranks=(schedule.ranks[0][:-1], *schedule.ranks[1:]))
    for broken in (swapped, shortened):
        with pytest.raises(AssertionError):
            check_schedule(broken)


def test_unknown_topology_names_the_choices() -> None:
    with pytest.raises(ValueError, match="topology=star.*broadcast, butterfly, ring"):
        make_schedule("star", 4)


def test_a_broadcast_that_leaves_one_out_is_found() -> None:
    schedule = make_schedule("broadcast", 3)
    (step,) = schedule.ranks[0]
    deaf = dataclasses.replace(step, receives=step.receives[:1])
    twice = dataclasses.replace(step, receives=(step.receives[0], step.receives[0]))
    for broken in (deaf, twice):
        with pytest.raises(AssertionError):
            check_schedule(dataclasses.replace(schedule, ranks=((broken,), *schedule.ranks[1:])))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_chunk_is_sealed_once(name: str, size: int) -> None:
    """Each chunk has one sealing rank if messages hold sums, and none otherwise."""
    schedule = make_schedule(name, size)
    sealed = [chunk for rank in range(size) for chunk in schedule.sealed_by(rank)]
    assert sorted(sealed) == list(range(schedule.num_chunks if schedule.sums_on_the_way else 0))
