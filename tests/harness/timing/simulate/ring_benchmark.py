"""Measures how long the timeline of a ring all-reduce takes to compute: python ring_benchmark.py [ranks]."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from reference_engine import run_reference
from simulated_steps import ring_plan

from gradwire.harness.network.links import star
from gradwire.harness.timing.simulate.engine import run
from gradwire.harness.timing.simulate.plan import OperationTimes, StepPlan

RATE, LATENCY_S, CHUNK = 12.5e9, 5e-6, 10**6


def timed(size: int, engine: Callable[..., OperationTimes]) -> tuple[float, float, float]:
    """Seconds for the plan, seconds for the timeline, and the end of the all-reduce in its own seconds."""
    begin = time.perf_counter()
    plan: StepPlan = ring_plan(size, size * CHUNK)
    planned = time.perf_counter()
    times = engine(plan, star(size, RATE, LATENCY_S), [0.0] * len(plan.kinds), [0.0] * size)
    ended = time.perf_counter()
    return planned - begin, ended - planned, max(times.end)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    expected = 2 * (size - 1) * (CHUNK / RATE + LATENCY_S)
    for name, engine in (("compiled", run), ("reference", run_reference)):
        plan_s, run_s, end = timed(size, engine)
        found = f"plan {plan_s:.2f} s, run {run_s:.2f} s, ends at {end:.9f} s"
        print(f"ring of {size}, {name}: {found}, closed form {expected:.9f} s")


if __name__ == "__main__":
    main()
