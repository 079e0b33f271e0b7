"""Networks as links: which a message takes, and what the fabric's rates become."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gradwire.harness.network.configured import link_rate, make_links
from gradwire.harness.network.links import LinkRoute, Links, NodeFabric, star, two_level, unlimited, uplinks
from gradwire.harness.network.settings import recorded_network


def of_two_levels(nodes: int, ranks: int, oversubscription: float = 1, nics: int = 1) -> Links:
    return two_level(nodes, ranks, NodeFabric(10, 3, 100, 2, nics, oversubscription))


def test_unlimited_has_no_links() -> None:
    assert unlimited().rates == ()
    assert unlimited().route(0, 1) == LinkRoute((), 0.0)


def test_an_uplink_is_the_senders_alone() -> None:
    links = uplinks(3, 7.0, 0.5)
    assert (links.rates, links.serial) == ((7.0,) * 3, True)
    assert links.route(2, 0) == LinkRoute((2,), 0.5)


def test_a_star_has_an_uplink_and_a_downlink_of_each_rank() -> None:
    links = star(4, 7.0, 0.5)
    assert (links.rates, links.serial) == ((7.0,) * 8, False)
    assert links.route(1, 3) == LinkRoute((1, 7), 0.5)
    taken = [links.route(source, target).links for source in range(4) for target in range(4)]
    assert len({*taken}) == 16


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 1), (2, 4), (3, 5)])
def test_two_levels(nodes: int, ranks: int) -> None:
    links, size = of_two_levels(nodes, ranks), nodes * ranks
    assert links.rates == (100,) * (2 * size) + (10,) * (2 * nodes)
    for source in range(size):
        for target in range(size):
            route = links.route(source, target)
            if source // ranks == target // ranks:
                assert route == LinkRoute((source, size + target), 2)
            else:
                out, into = route.links
                assert (out, into) == (2 * size + source // ranks, 2 * size + nodes + target // ranks)
                assert route.latency_s == 3


def test_the_core_is_shared_by_what_leaves_nodes() -> None:
    links = of_two_levels(4, 2, Fraction(5, 2))
    assert links.rates[-1] == 4 * 10 / Fraction(5, 2)
    core = len(links.rates) - 1
    assert links.route(0, 7).links[-1] == core
    assert core not in links.route(0, 1).links
    assert len(of_two_levels(4, 2, 1).rates) == core


@pytest.mark.parametrize("nics", [1, 2, 3, 6])
def test_ranks_of_a_node_are_spread_over_its_nics(nics: int) -> None:
    nodes, ranks = 3, 6
    links, size = of_two_levels(nodes, ranks, 1, nics), nodes * ranks
    assert links.rates == (100,) * (2 * size) + (10,) * (2 * nodes * nics)
    out = [links.route(rank, (rank + ranks) % size).links[0] for rank in range(size)]
    into = [links.route((rank + ranks) % size, rank).links[1] for rank in range(size)]
    assert [port - 2 * size for port in out] == [rank * nics // ranks for rank in range(size)]
    assert [port - 2 * size - nodes * nics for port in into] == [rank * nics // ranks for rank in range(size)]
    core = of_two_levels(nodes, ranks, 2, nics).rates[-1]
    assert core == nodes * nics * 10 / 2


def test_a_multicast_takes_each_link_once() -> None:
    assert star(4, 7.0, 0.5).multicast(1, (0, 2, 3)) == LinkRoute((1, 4, 6, 7), 0.5)
    assert star(4, 7.0, 0.5).multicast(1, (3,)) == star(4, 7.0, 0.5).route(1, 3)
    links = of_two_levels(2, 2, 2)
    inside, out, into, core = (0, 5), 8, 11, 12
    assert links.multicast(0, (1, 2, 3)) == LinkRoute((*inside, out, into, core), 3)
    assert unlimited().multicast(0, (1, 2)) == LinkRoute((), 0.0)


def test_a_rate_in_mbit_counts_payload() -> None:
    network = recorded_network(
        {
            "name": "simulated",
            "fabric": "star",
            "rate_mbit": 80.0,
            "efficiency": 0.5,
            "latency_s": 0.25,
            "rate_changes": [[3, 0.5], [4.5, 2]],
        }
    )
    assert make_links(network, 2).rates == (5e6,) * 4
    assert make_links(network, 2).changes == ((3, 0.5), (4.5, 2))
    shaped = {"name": "shaped", "rate_mbit": 80.0, "rate_changes": [[3, 0.5]]}
    assert make_links(recorded_network(shaped), 2).changes == ((3, 0.5),)
    assert link_rate(recorded_network(shaped), 2) is None
    assert link_rate(recorded_network(shaped | {"rate_changes": []}), 2) == 80e6
    paced = recorded_network({"name": "paced", "rate_mbit": 80.0, "latency_s": 0.25})
    assert make_links(paced, 2).rates == (10e6,) * 2
