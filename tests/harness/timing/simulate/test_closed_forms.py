"""Timelines that can be written down, exactly: all numbers are fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from reference_engine import run_reference
from simulated_steps import (
    SOME_WORK,
    all_reduce,
    exact_ends,
    post,
    receiving,
    ring_plan,
    sending,
    task,
    wait,
)

from gradwire.harness.network.links import Links, NodeFabric, star, two_level, unlimited, uplinks
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import compile_plan

RATE: Any = Fraction(7, 3)
LATENCY: Any = Fraction(1, 11)


def of_links(size: int) -> list[Links]:
    return [star(size, RATE, LATENCY), uplinks(size, RATE, LATENCY)]


@pytest.mark.parametrize("num_bytes", [1, 10, 12345])
def test_one_link(num_bytes: int) -> None:
    for links in of_links(2):
        found = exact_ends({0: (sending(1, num_bytes),), 1: (receiving(0, num_bytes),)}, links)
        assert set(found.values()) == {num_bytes / RATE + LATENCY}


@pytest.mark.parametrize("size", range(2, 10))
def test_a_ring_of_equal_links(size: int) -> None:
    chunk = 12
    expected = Fraction(2 * (size - 1), size) * size * chunk / RATE + 2 * (size - 1) * LATENCY
    for links in of_links(size):
        assert set(exact_ends(all_reduce("ring", size, chunk), links).values()) == {expected}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_butterfly_of_equal_links(size: int) -> None:
    rounds = size.bit_length() - 1
    expected = Fraction(2 * (size - 1), size) * size * 12 / RATE + 2 * rounds * LATENCY
    assert set(exact_ends(all_reduce("butterfly", size, 12), star(size, RATE, LATENCY)).values()) == {
        expected
    }


@pytest.mark.parametrize("size", [2, 3, 6])
def test_a_broadcast_on_a_star_shares_every_uplink(size: int) -> None:
    """All messages at once: each link carries size − 1 of a whole gradient."""
    (chunks,) = {
        num_bytes
        for own in all_reduce("broadcast", size, 1).values()
        for operation in own[0].operations
        for _, num_bytes in getattr(operation, "sends", ())
    }
    found = exact_ends(all_reduce("broadcast", size, 12), star(size, RATE, LATENCY))
    assert set(found.values()) == {(size - 1) * chunks * 12 / RATE + LATENCY}


@pytest.mark.parametrize("size", range(1, 8))
def test_a_ring_plan_is_that_of_the_schedule(size: int) -> None:
    links, tasks = star(size, RATE, LATENCY), all_reduce("ring", size, 12)
    compiled, written = compile_plan(tasks, 1), ring_plan(size, 12 * size)
    assert compiled.kinds.tolist() == written.kinds.tolist()
    work, ready = [0] * len(compiled.kinds), list(range(size))
    assert run_reference(written, links, work, ready) == run_reference(compiled, links, work, ready)


def test_a_ring_of_floats_takes_as_long() -> None:
    size, rate, latency = 64, 12.5e9, 5e-6
    plan = ring_plan(size, size * 10**6)
    times = run(plan, star(size, rate, latency), [0.0] * len(plan.kinds), [0.0] * size)
    assert max(times.end) == pytest.approx(2 * (size - 1) * (10**6 / rate + latency), rel=1e-12)


def test_chunks_are_rounded_up() -> None:
    assert set(ring_plan(4, 10).sizes.tolist()) == {3}


def two_flows(first: int, second: int, later: Fraction) -> dict[tuple[int, int], Fraction]:
    """Ranks 0 and 1 both send rank 2; the second one `later`."""
    tasks = {
        0: (sending(2, first, bucket=0),),
        1: (sending(2, second, bucket=1),),
        2: (receiving(0, first, bucket=0), receiving(1, second, bucket=1)),
    }
    ready = {(0, 0): Fraction(0), (1, 1): later, (2, 0): Fraction(0), (2, 1): later}
    return exact_ends(tasks, star(3, RATE, LATENCY), ready=ready, in_flight=2)


def test_two_equal_flows_on_one_link_both_take_twice_as_long() -> None:
    found = two_flows(10, 10, Fraction(0))
    assert found[0, 0] == found[1, 1] == 20 / RATE + LATENCY


def test_of_two_unequal_flows_the_larger_one_has_the_link_alone_in_the_end() -> None:
    found = two_flows(4, 10, Fraction(0))
    assert found[0, 0] == found[2, 0] == 8 / RATE + LATENCY
    assert found[1, 1] == found[2, 1] == 14 / RATE + LATENCY


def test_a_flow_that_comes_later_takes_half_of_what_is_left() -> None:
    later = 6 / RATE
    found = two_flows(10, 10, later)
    assert found[0, 0] == (6 + 2 * 4) / RATE + LATENCY
    assert found[1, 1] == 20 / RATE + LATENCY


def test_a_third_flow_joins_two() -> None:
    """Each flow has 12 bytes: two share the link by halves until 8 bytes of each are carried, then three by
    thirds."""
    later = 8 / (RATE / 2)
    tasks = {rank: (sending(3, 12, bucket=rank),) for rank in range(3)}
    tasks[3] = tuple(receiving(rank, 12, bucket=rank) for rank in range(3))
    ready = {(rank, rank): Fraction(0) for rank in range(3)} | {(3, rank): Fraction(0) for rank in range(3)}
    ready[2, 2] = later
    found = exact_ends(tasks, star(4, RATE, LATENCY), ready=ready, in_flight=3)
    first = later + 4 / (RATE / 3)
    assert found[0, 0] == found[1, 1] == first + LATENCY
    assert found[2, 2] == first + 8 / RATE + LATENCY == 36 / RATE + LATENCY


def test_a_link_that_is_shared_elsewhere_leaves_more_to_others() -> None:
    """0 → 2 and 1 → 2 share a downlink, 1 → 3 has the rest of 1's uplink: all of them a half."""
    tasks = {
        0: (sending(2, 10, bucket=0),),
        1: (sending(2, 10, bucket=1), sending(3, 20, bucket=2)),
        2: (receiving(0, 10, bucket=0), receiving(1, 10, bucket=1)),
        3: (receiving(1, 20, bucket=2),),
    }
    found = exact_ends(tasks, star(4, RATE, LATENCY), in_flight=2)
    assert found[0, 0] == found[1, 1] == 20 / RATE + LATENCY
    assert found[1, 2] == 30 / RATE + LATENCY


def on_nodes(nodes: int, ranks: int, oversubscription: Any) -> Links:
    fabric = NodeFabric(RATE, LATENCY, 10 * RATE, LATENCY / 10, oversubscription=oversubscription)
    return two_level(nodes, ranks, fabric)


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (2, 4), (3, 2), (4, 4)])
@pytest.mark.parametrize("oversubscription", [Fraction(1), Fraction(5, 2)])
def test_a_ring_over_nodes_is_as_slow_as_between_nodes(
    nodes: int, ranks: int, oversubscription: Fraction
) -> None:
    """One message leaves each node at a time; an oversubscribed core gives each its share of it."""
    size, chunk = nodes * ranks, 12
    hop = chunk * oversubscription / RATE + LATENCY
    found = exact_ends(all_reduce("ring", size, chunk), on_nodes(nodes, ranks, oversubscription))
    assert max(found.values()) == 2 * (size - 1) * hop


@pytest.mark.parametrize("oversubscription", [Fraction(1), Fraction(2)])
def test_ranks_of_a_node_share_its_port(oversubscription: Fraction) -> None:
    """All 4 ranks of each of 2 nodes send one of the other node."""
    tasks = {
        rank: (
            task(
                post(sends=[((rank + 4) % 8, 10)], receives=[((rank + 4) % 8, 10)]), wait(), bucket=rank % 4
            ),
        )
        for rank in range(8)
    }
    found = exact_ends(tasks, on_nodes(2, 4, oversubscription))
    assert set(found.values()) == {4 * 10 * oversubscription / RATE + LATENCY}


def test_inside_a_node_nothing_is_shared_with_other_nodes() -> None:
    tasks = {
        0: (sending(1, 10, bucket=0),),
        1: (receiving(0, 10, bucket=0),),
        2: (sending(1, 10, bucket=1),),
        3: (),
    }
    tasks[1] += (receiving(2, 10, bucket=1),)
    found = exact_ends(tasks, on_nodes(2, 2, Fraction(1)), in_flight=2)
    assert found[0, 0] == 10 / (10 * RATE) + LATENCY / 10
    assert found[2, 1] == 10 / RATE + LATENCY


def test_without_links_messages_take_no_time() -> None:
    for size in (2, 128):
        found = exact_ends(all_reduce("ring", size, 12), unlimited(), ready=Fraction(3))
        assert set(found.values()) == {3}


def test_empty_messages_take_no_time() -> None:
    found = exact_ends(all_reduce("ring", 5, 0), star(5, RATE, LATENCY))
    assert set(found.values()) == {0}


def test_what_is_only_measured_takes_no_time() -> None:
    tasks = {
        0: (task(post(sends=[(1, 10)], phase="measure"), wait()),),
        1: (task(post(receives=[(0, 10)], phase="measure"), wait()),),
    }
    assert set(exact_ends(tasks, star(2, RATE, LATENCY)).values()) == {0}


@pytest.mark.parametrize("size", [2, 5])
def test_work_adds_to_every_hop(size: int) -> None:
    work, hops = Fraction(2, 7), 2 * (size - 1)
    found = exact_ends(all_reduce("ring", size, 12, work=True), star(size, RATE, LATENCY), work_s=work)
    assert set(found.values()) == {(hops + 1) * work + hops * (12 / RATE + LATENCY)}


def test_a_late_rank_keeps_its_neighbours_waiting() -> None:
    tasks = {0: (task(SOME_WORK, *sending(1, 10).operations),), 1: (receiving(0, 10),)}
    found = exact_ends(tasks, star(2, RATE, LATENCY), ready={(0, 0): Fraction(5), (1, 0): Fraction(1)})
    assert set(found.values()) == {5 + 10 / RATE + LATENCY}
