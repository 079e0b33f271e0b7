"""How long the timeline of a ring all-reduce takes to compute: python ring_benchmark.py [ranks]."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from gradwire.harness.network.links import star
from gradwire.harness.timing.simulate.compiled import run_compiled
from gradwire.harness.timing.simulate.engine import run_in_python
from gradwire.harness.timing.simulate.plan import Plan, Times
from gradwire.harness.timing.simulate.rings import ring_plan

RATE, LATENCY_S, CHUNK = 12.5e9, 5e-6, 10**6


def timed(size: int, run: Callable[..., Times | None]) -> tuple[float, float, float | None]:
    """Seconds for the plan, seconds for the timeline, and the end of the all-reduce in its own seconds."""
    begin = time.perf_counter()
    plan: Plan = ring_plan(size, size * CHUNK)
    planned = time.perf_counter()
    times = run(plan, star(size, RATE, LATENCY_S), [0.0] * len(plan.kinds), [0.0] * size)
    ended = time.perf_counter()
    return planned - begin, ended - planned, None if times is None else max(times.end)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    expected = 2 * (size - 1) * (CHUNK / RATE + LATENCY_S)
    for name, run in (("compiled", run_compiled), ("python", run_in_python)):
        plan_s, run_s, end = timed(size, run)
        found = "not built" if end is None else f"plan {plan_s:.2f} s, run {run_s:.2f} s, ends at {end:.9f} s"
        print(f"ring of {size}, {name}: {found}, closed form {expected:.9f} s")


if __name__ == "__main__":
    main()
