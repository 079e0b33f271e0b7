"""Simulates a plan on links, which gives the times at which each operation of each rank began and ended.

A rank's communication processor works like the real one (`transport.thread`): threads take turns with it from
one wait to the next. A message starts when both of its ends are posted and earlier messages on the same
connection have been carried; each pair of ranks has a connection, and so has a rank with the ranks that it
multicasts to. A post is complete when the last byte of its last message has arrived. A multicast starts when
it is sent, whether its receivers are ready or not: they store it until they need it, as in AQGB's reliable
broadcast. All events at one time are handled before rates are recomputed.

Messages may be more or less urgent (`trace.step.Urgency`). Messages of a lower level share links as if there
were no others, and higher levels share the rest. On a connection the most urgent waiting message is next, and
a message in flight is preempted at its next boundary.

A rank's computation, its lane, has a processor of its own. It starts tasks, awaits them, and waits for the
other lanes at barriers. The end of a computation is given in seconds since the lane last woke, i.e. began a
step or stopped waiting. So rounding errors do not accumulate, and when a lane wakes all times up to its next
wait are known.

The engine is a compiled library (`csrc/simulator`). Tests compare it, bit for bit, with a reference in plain
Python (`tests/harness/timing/simulate/reference_engine.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.codecs.native import call
from gradwire.codecs.native.loading import Library, load_library
from gradwire.harness.network.links import LinkRoute, Links
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.plan import AWAIT, POST, WAIT, OperationTimes, StepPlan, column

COLUMNS = (
    *("kinds", "values", "first_operations", "ranks", "first_tasks", "thread_tasks", "first_lane_operations"),
    *("route", "sizes", "senders", "first_receivers", "receivers"),
)
"""The columns of a plan; the fields of the library's struct have the same names."""

URGENCY = ("levels", "newest_first", "boundaries")
"""The columns of a plan with messages of different urgency."""

CPU = torch.device("cpu")


class UnfitNetworkError(ValueError):
    """Raised for a network on which these messages cannot be simulated; the text is one line."""


@cache
def library() -> Library | None:
    """The engine's library; None if it was not built. Raises ImportError if it was built from other
    sources.
    """
    return load_library("simulator")


def require_engine(subject: str) -> Library:
    """The engine's library. Raises ValueError, a line that begins with `subject`, if it was not built."""
    try:
        found = library()
    except ImportError as error:
        raise ValueError(f"{subject} needs the simulated clock: {error}") from None
    if found is None:
        raise ValueError(
            f"{subject} needs the simulated clock, whose engine libgradwire_simulator.so is not built here; "
            "install g++, then make install"
        )
    return found


def run(
    plan: StepPlan,
    links: Links,
    work_s: Sequence[float],
    ready: Sequence[float],
    background: BackgroundJobs | None = None,
) -> OperationTimes:
    """Simulates a plan.

    `work_s` gives for each operation the seconds of work, or of computation since its lane woke (ignored for
    other operations); `ready` gives for each task when it may begin, unless its lane starts it later.

    Raises ValueError for a time that is not finite, for a rate that is not positive and finite, and without
    the library; UnfitNetworkError for background traffic combined with levels, one of which it would block
    for ever; RuntimeError on a deadlock.
    """
    engine = require_engine("a step")
    routes = [links.multicast(*ends) for ends in plan.routes]
    fields = _plan_fields(plan)
    fields |= {"work_s": _times(work_s, len(plan.kinds)), "ready": _times(ready, fields["tasks"])}
    if background is not None:
        if plan.levels is not None and plan.levels.any():
            raise UnfitNetworkError(
                f"network.background_jobs={len(background.first)} and messages of level {plan.levels.max()} "
                "cannot be simulated together: one would block the other for ever; set "
                "network.background_jobs=0, or start all collectives at level 0"
            )
        routes += background.routes
        fields |= {"jobs": len(background.first), "size": background.size, "chunk": background.chunk}
        fields["first_chunks"] = np.array(background.first, np.float64)
    fields |= network_fields(links, routes)
    start, end = np.full((2, len(plan.kinds)), np.nan)
    unfinished = np.zeros(1, np.int64)
    fields |= {"start": start, "end": end, "unfinished": unfinished}
    tensors = {
        name: (torch.from_numpy(value), value.size)
        for name, value in fields.items()
        if isinstance(value, np.ndarray)
    }
    call.run(engine, "simulate", CPU, **(fields | tensors))
    if unfinished[0]:
        raise RuntimeError(f"the collective is stuck: {_waits(plan, ~np.isnan(start), np.isnan(end))}")
    return OperationTimes(start.tolist(), end.tolist())


def _plan_fields(plan: StepPlan) -> dict[str, Any]:
    columns = COLUMNS if plan.levels is None else (*COLUMNS, *URGENCY)
    return {name: getattr(plan, name) for name in columns} | {
        "urgent": plan.levels is not None,
        "operations": len(plan.kinds),
        "tasks": len(plan.first_operations) - 1,
        "threads": len(plan.ranks),
        "lanes": len(plan.first_lane_operations) - 1,
        "posts": plan.num_posts,
        "messages": len(plan.sizes),
    }


def network_fields(links: Links, routes: Sequence[LinkRoute]) -> dict[str, Any]:
    """Fields of the library's struct; the links of route r are `route_links[first_links[r]:first_links[r +
    1]]`."""
    factors = [change.factor for change in links.changes]
    return {
        "routes": len(routes),
        "links": len(links.rates),
        "serial": links.serial,
        "first_links": column([*accumulate((len(route.links) for route in routes), initial=0)]),
        "route_links": column([link for route in routes for link in route.links]),
        "latencies": _times([route.latency_s for route in routes]),
        "rates": _rates(links.rates, factors),
        "changes": len(factors),
        "change_at": _times([change.at_s for change in links.changes]),
        "change_factors": np.array(factors, np.float64),
    }


def _times(seconds: Sequence[float], count: int | None = None) -> NDArray[np.float64]:
    found = np.array(seconds, np.float64)
    assert count is None or found.size == count, "work per operation, readiness per task"
    wrong = found[~np.isfinite(found)]
    if wrong.size:
        raise ValueError(f"times to simulate must be finite, got {wrong[0]}")
    return found


def _rates(rates: Sequence[float], factors: Sequence[float]) -> NDArray[np.float64]:
    """The initial rates and those after each change, which must be positive and finite."""
    found = np.array(rates, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        changed = np.outer([1.0, *factors], found)
    wrong = changed[~((changed > 0) & (changed < np.inf))]
    if wrong.size:
        raise ValueError(f"rates of links must be above 0 and finite, got {wrong[0]}")
    return found


def _waits(plan: StepPlan, begun: NDArray[np.bool_], unfinished: NDArray[np.bool_]) -> str:
    """Describes a deadlock: the ranks that wait for one another, given the operations begun and unfinished,
    or, if no message is missing, the awaited tasks that were never started.

    At a deadlock every message has arrived whose ends are posted or, for a multicast, whose source is.
    """
    posted = set(plan.values[begun & (plan.kinds == POST)].tolist())
    waited_for = set(plan.values[begun & (plan.kinds == WAIT)].tolist())
    waits: set[str] = set()
    for message, route in enumerate(plan.route.tolist()):
        source, destinations = plan.routes[route]
        first, after = plan.first_receivers[message : message + 2]
        ends = [(plan.senders[message], source), *zip(plan.receivers[first:after], destinations, strict=True)]
        needed = ends if len(ends) == 2 else ends[:1]
        absent = [rank for post, rank in needed if post not in posted]
        here = [rank for post, rank in ends if post in waited_for]
        waits |= {f"rank {rank} for rank {other}" for rank in here for other in absent}
    if not waits:
        awaited = plan.values[begun & unfinished & (plan.kinds == AWAIT)].tolist()
        waits = {f"task {task} is awaited before it is started" for task in awaited}
    return ", ".join(sorted(waits))
