"""Max-min fair sharing: no flow can get more without taking from a flow that has no more than it.

Progressive filling (Bertsekas and Gallager, Data Networks, §6.5.2): the link that can offer its flows the
smallest share fixes their rates; the remaining capacity is then shared in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def max_min(routes: Mapping[int, Sequence[int]], rates: Mapping[int, float]) -> dict[int, float]:
    """Returns the rate of each flow, given the links it takes and the links' rates.

    Every flow takes at least one link. Links are visited by number and flows in the order given, so the
    result is the same wherever it is computed.
    """
    left = dict(rates)
    flows_on: dict[int, list[int]] = {link: [] for link in sorted(rates)}
    for flow, links in routes.items():
        for link in links:
            flows_on[link].append(flow)
    given: dict[int, float] = {}
    open_on = {link: len(flows) for link, flows in flows_on.items()}
    while len(given) < len(routes):
        share, narrowest = min((left[link] / count, link) for link, count in open_on.items() if count)
        for flow in flows_on[narrowest]:
            if flow in given:
                continue
            given[flow] = share
            for link in routes[flow]:
                left[link] -= share
                open_on[link] -= 1
    return given
