"""Times of a repeated call: the thread's CPU time, wall time, or the time between two events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

FEWEST, MOST = 3, 10_000
"""The least and the largest number of repeats of a call."""

IN_CACHE = 4
"""A working set counts as held in a GPU's L2 cache if this many of it would fit; for others the cache is
flushed."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call: the shortest and the median of `repeats`."""

    shortest_s: float
    median_s: float
    repeats: int
    clock: str  # "thread CPU", "wall", "CUDA graph" or "CUDA launch"


def time_on_cpu(run: Callable[[], object], seconds: float, threads: int) -> Times:
    """Repeats `run` for `seconds`. With one thread its CPU time counts, which other processes do not change;
    with several, wall time does."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    with intra_op_threads(threads):
        run()
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while len(taken) < FEWEST or (time.perf_counter() < end and len(taken) < MOST):
            start = clock()
            run()
            taken.append(clock() - start)
    return Times(min(taken), median(taken), len(taken), "thread CPU" if threads == 1 else "wall")


@contextmanager
def intra_op_threads(threads: int) -> Iterator[None]:
    """Limits this project's kernels and PyTorch's to so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_on_gpu(run: Callable[[], object], seconds: float, touched: int, device: torch.device) -> Times:
    """Repeats `run` for `seconds` on `device`, each time between two events; a call moves `touched` bytes.

    A call that can be captured runs as a CUDA graph. The L2 cache is flushed before each call unless the
    working set stays in it anyway.
    """
    launch, clock = _launch(run, device)
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    spoiler = torch.empty(2 * l2, dtype=torch.uint8, device=device) if IN_CACHE * touched > l2 else None
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < FEWEST or (time.perf_counter() < end and len(taken) < MOST):
        if spoiler is not None:
            spoiler.zero_()
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        taken.append(1e-3 * start.elapsed_time(stop))
    return Times(min(taken), median(taken), len(taken), clock)


def _launch(run: Callable[[], object], device: torch.device) -> tuple[Callable[[], object], str]:
    """`run` as a replay of its CUDA graph, or `run` itself if it cannot be captured."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(FEWEST):
            run()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize(device)
        return run, "CUDA launch"
    return graph.replay, "CUDA graph"
