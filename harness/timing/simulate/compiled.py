"""The engine's twin in C++ (`csrc/cpu/timeline.cpp`): floats alone, the same bytes, in less time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.codecs.native.call import run
from gradwire.codecs.native.loading import Library, library
from gradwire.harness.network.links import Links, Route
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.plan import Plan, Times, column

OPERATION = "run_timeline"

COLUMNS = (
    *("kinds", "values", "first_operations", "ranks", "first_tasks", "thread_tasks"),
    *("route", "sizes", "senders", "first_receivers", "receivers"),
)
"""The columns of a plan; the struct's fields have the same names."""

Arrays = dict[str, NDArray[Any]]


def run_compiled(
    plan: Plan,
    links: Links,
    work_s: Sequence[float],
    ready: Sequence[float],
    background: BackgroundJobs | None = None,
) -> Times | None:
    """As `engine.run`; None where there is no compiled engine, where a number is not a finite float, or where
    some rank waits for ever: the definition knows what to do, or to say."""
    engine = _engine()
    if engine is None:
        return None
    routes = [links.multicast(*ends) for ends in plan.routes] + (
        [] if background is None else [*background.routes]
    )
    arrays = _floats(
        work_s=work_s,
        ready=ready,
        latencies=[route.latency_s for route in routes],
        rates=links.rates,
        first_chunks=[] if background is None else [*background.first, background.chunk],
        change_at=[change.at_s for change in links.changes],
        change_factors=[change.factor for change in links.changes],
    )
    if arrays is None or not _are_rates(arrays["rates"], arrays["change_factors"]):
        return None
    arrays |= {name: getattr(plan, name) for name in COLUMNS} | _tables(routes)
    operations, tasks = len(plan.kinds), len(plan.first_operations) - 1
    assert len(work_s) == operations and len(ready) == tasks, "work per operation, readiness per task"
    start, end, unfinished = np.empty(operations), np.empty(operations), np.zeros(1, np.int64)
    arrays |= {"start": start, "end": end, "unfinished": unfinished}
    arguments = {name: (torch.from_numpy(array), array.size) for name, array in arrays.items()}
    run(
        engine,
        OPERATION,
        torch.device("cpu"),
        operations=operations,
        tasks=tasks,
        threads=len(plan.ranks),
        posts=plan.num_posts,
        messages=len(plan.sizes),
        routes=len(routes),
        links=len(links.rates),
        serial=links.serial,
        jobs=0 if background is None else len(background.first),
        size=0 if background is None else background.size,
        chunk=0 if background is None else background.chunk,
        changes=len(links.changes),
        **arguments,
    )
    return None if unfinished[0] else Times(start.tolist(), end.tolist())


@cache
def _engine() -> Library | None:
    """The library for CPUs, where it is built and has an engine."""
    found = library("cpu")
    return found if found is not None and hasattr(found.handle, f"gradwire_{OPERATION}") else None


def _floats(**numbers: Iterable[float]) -> Arrays | None:
    """Columns of float64; None where something in them is not a float or an integer, or not finite."""
    arrays = {name: np.asarray(values) for name, values in numbers.items()}
    if any(array.dtype.kind not in "iuf" or not np.isfinite(array).all() for array in arrays.values()):
        return None
    return {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}


def _are_rates(rates: NDArray[Any], factors: NDArray[Any]) -> bool:
    """Whether all rates, changed ones included, are above 0 and finite."""
    with np.errstate(over="ignore"):
        all_rates = np.concatenate([rates, np.outer(factors, rates).ravel()])
    return bool(((all_rates > 0) & np.isfinite(all_rates)).all())


def _tables(routes: Sequence[Route]) -> Arrays:
    """The links of route r: `route_links[first_links[r]:first_links[r + 1]]`."""
    return {
        "first_links": column([*accumulate((len(route.links) for route in routes), initial=0)]),
        "route_links": column([link for route in routes for link in route.links]),
    }
