"""Max-min fair rates against a solver of another kind, and against what defines them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from linear_programs import maximum
from reference_flows import max_min

Routes = dict[int, tuple[int, ...]]
Rates = dict[int, Fraction]


def random_flows(seed: int) -> tuple[Routes, Rates]:
    """Up to 8 links and 12 flows; rates from a few values, so that many links are as narrow as others."""
    drawn = random.Random(seed)
    rates = {link: Fraction(drawn.choice((1, 2, 3, 4, 7)), drawn.choice((1, 2))) for link in range(8)}
    num_links = drawn.randint(1, 8)
    routes = {
        flow: tuple(drawn.sample(range(num_links), drawn.randint(1, min(3, num_links))))
        for flow in drawn.sample(range(100), drawn.randint(1, 12))
    }
    return routes, {link: rates[link] for link in range(num_links)}


def successive_programs(routes: Routes, rates: Rates) -> Rates:
    """Raise the lowest rate as far as it goes, fix the flows that cannot have more, and so on."""
    fixed: Rates = {}
    while len(fixed) < len(routes):
        free = [flow for flow in routes if flow not in fixed]
        left = [rates[link] - sum(fixed[flow] for flow in fixed if link in routes[flow]) for link in rates]
        on = [[flow for flow in free if link in routes[flow]] for link in rates]
        # Each free flow has the level, which is to be maximal, and something beyond it.
        level = maximum([[len(flows), *(flow in flows for flow in free)] for flows in on], left, 0)
        beyond = [[int(flow in flows) for flow in free] for flows in on]
        spare = [have - len(flows) * level for have, flows in zip(left, on, strict=True)]
        tight = [flow for index, flow in enumerate(free) if maximum(beyond, spare, index) == 0]
        assert tight
        fixed |= dict.fromkeys(tight, level)
    return fixed


def bottlenecks(
    routes: Mapping[int, Sequence[int]], rates: Mapping[int, Fraction], given: Mapping[int, Fraction]
) -> dict[int, list[int]]:
    """For each flow, the links that are full and on which no other flow has more than it."""
    on = {link: [flow for flow in routes if link in routes[flow]] for link in rates}
    full = {link for link in rates if sum(given[flow] for flow in on[link]) == rates[link]}
    return {
        flow: [
            link for link in links if link in full and given[flow] == max(given[other] for other in on[link])
        ]
        for flow, links in routes.items()
    }


@pytest.mark.parametrize("seed", range(150))
def test_as_successive_linear_programs_find_them(seed: int) -> None:
    routes, rates = random_flows(seed)
    assert max_min(routes, rates) == successive_programs(routes, rates)


@pytest.mark.parametrize("seed", range(400))
def test_every_flow_has_a_bottleneck_and_no_link_too_much(seed: int) -> None:
    routes, rates = random_flows(1000 + seed)
    given = max_min(routes, rates)
    assert given.keys() == routes.keys()
    assert all(bottlenecks(routes, rates, given).values())
    for link, rate in rates.items():
        assert sum(given[flow] for flow, links in routes.items() if link in links) <= rate


@pytest.mark.parametrize("seed", range(50))
def test_floats_come_as_close_as_they_can(seed: int) -> None:
    routes, rates = random_flows(seed)
    found = max_min(routes, {link: float(rate) for link, rate in rates.items()})
    assert found == pytest.approx(max_min(routes, rates), rel=1e-14)


def test_a_textbook_case() -> None:
    """Three links in a row: a flow along all, one on the first, two on the second, one on the last."""
    routes = {0: (0, 1, 2), 1: (0,), 2: (1,), 3: (1,), 4: (2,)}
    rates = {0: Fraction(1), 1: Fraction(1), 2: Fraction(2)}
    third = Fraction(1, 3)
    assert max_min(routes, rates) == {0: third, 1: 2 * third, 2: third, 3: third, 4: 5 * third}


def test_of_links_listed_in_any_order() -> None:
    routes, rates = random_flows(7)
    floats = {link: float(rate) / 3 for link, rate in rates.items()}
    assert max_min(routes, floats) == max_min(routes, dict(reversed(floats.items())))


def test_no_flows_share_nothing() -> None:
    assert max_min({}, {0: 1.0}) == {}
