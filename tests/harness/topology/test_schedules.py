"""Every topology is a correct all-reduce for every world size, and sends what it should."""

import dataclasses

import pytest

from gradwire.harness.topology.check import check_schedule, chunks_sent
from gradwire.harness.topology.registry import TOPOLOGIES, make_schedule


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("size", range(1, 65))
def test_schedule_is_an_all_reduce(name: str, size: int) -> None:
    schedule = make_schedule(name, size)
    check_schedule(schedule)
    # 2(n − 1) encoded gradients in all, folded or not.
    assert sum(chunks_sent(schedule)) == 2 * (size - 1) * schedule.num_chunks


@pytest.mark.parametrize("size", [2, 4, 8, 64])
@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_load_is_balanced(name: str, size: int) -> None:
    assert len(set(chunks_sent(make_schedule(name, size)))) == 1


@pytest.mark.parametrize("size", [4, 8])
def test_hops(size: int) -> None:
    assert len(make_schedule("ring", size).ranks[0]) == 2 * (size - 1)
    assert len(make_schedule("butterfly", size).ranks[0]) == 2 * (size.bit_length() - 1)


def test_the_checker_finds_faults() -> None:
    schedule = make_schedule("ring", 4)
    swapped = dataclasses.replace(schedule, ranks=(schedule.ranks[1], schedule.ranks[0], *schedule.ranks[2:]))
    shortened = dataclasses.replace(schedule, ranks=(schedule.ranks[0][:-1], *schedule.ranks[1:]))
    for broken in (swapped, shortened):
        with pytest.raises(AssertionError):
            check_schedule(broken)


def test_unknown_topology_names_the_choices() -> None:
    with pytest.raises(ValueError, match="topology=star.*butterfly, ring"):
        make_schedule("star", 4)


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_chunk_is_sealed_once(name: str, size: int) -> None:
    schedule = make_schedule(name, size)
    sealed = [chunk for rank in range(size) for chunk in schedule.sealed_by(rank)]
    assert sorted(sealed) == list(range(schedule.num_chunks))
