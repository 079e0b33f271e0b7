"""Measures every operation on every kind of bucket with every implementation: pieces of work, clocks and
rows.

The time of a repeated call is the thread's CPU time, wall time, or the time between two events on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.studies.bench.operation import Case, Operation
from gradwire.harness.studies.bench.study import BenchRow, Times
from gradwire.harness.timing.measure.metric import quotient

FEWEST, MOST = 3, 10_000
"""The smallest and the largest number of repeats of a call."""

IN_CACHE = 4
"""A working set is assumed to stay in a GPU's L2 cache if this many of it would fit; otherwise the cache is
flushed."""


def time_on_cpu(run: Callable[[], object], seconds: float, threads: int) -> Times:
    """Repeats `run` for `seconds`. With one thread its CPU time is measured, which other processes do not
    affect; with several, wall time."""
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
    """Limits the threads of this project's kernels and of PyTorch in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_on_gpu(run: Callable[[], object], seconds: float, touched: int, device: torch.device) -> Times:
    """Repeats `run` for `seconds` on `device`, timing each call between two events; a call moves `touched`
    bytes.

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
    """`run` as a replay of its CUDA graph, or `run` itself if it cannot be captured, with a name for this
    choice."""
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


def by_case(rows: Iterable[BenchRow]) -> Iterable[dict[str, BenchRow]]:
    """The rows on one thread: for each dtype, size and implementation, its rows by operation."""
    found = dict[tuple[str, int, str], dict[str, BenchRow]]()
    for row in rows:
        if row.threads == 1:
            found.setdefault((row.dtype, row.numel, row.implementation), {})[row.operation] = row
    return found.values()


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

DEFAULT = "default"


@dataclass(frozen=True)
class BenchSettings:
    """The chosen measurements, and the minimum time for each; `kernels` names the compiled kernels, or is
    `default`."""

    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    seconds: float
    kernels: str
    device: torch.device
    seed: int
    definition: bool = True  # also without compiled kernels, which they are compared with


@dataclass(frozen=True)
class BenchPiece:
    """An operation on one kind of bucket."""

    operation: Operation
    numel: int
    dtype: str

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key that identifies the piece."""
        return self.operation.name, self.dtype, self.numel


def pieces(operations: Sequence[Operation], settings: BenchSettings) -> list[BenchPiece]:
    """All pieces to measure; those on the same bucket follow each other."""
    return [
        BenchPiece(operation, numel, dtype)
        for numel in settings.sizes
        for dtype in settings.dtypes
        for operation in operations
        if dtype in operation.dtypes
    ]


class Measuring:
    """Measures pieces, and once per bucket the speed of a copy of it."""

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self._kind: tuple[int, str] | None = None

    def rows(self, piece: BenchPiece) -> list[BenchRow]:
        """The rows of a piece, one for each implementation."""
        settings = self._settings
        if self._kind != (piece.numel, piece.dtype):
            self._x = x = bucket(piece.numel, piece.dtype, settings)
            self._copy_rate = {n: _copy_rate(x, settings, n) for n in {1, *_threads(settings)}}
            self._kind = (piece.numel, piece.dtype)
        return list(_rows(piece.operation, self._x, self._copy_rate, settings))


def bucket(numel: int, dtype: str, settings: BenchSettings) -> Tensor:
    """Normally distributed coordinates drawn from the seed, (numel,), the same on every device."""
    generator = torch.Generator().manual_seed(settings.seed)
    return torch.randn(numel, generator=generator).to(DTYPES[dtype]).to(settings.device)


def _threads(settings: BenchSettings) -> tuple[int, ...]:
    """The numbers of host threads to measure with; a GPU needs one."""
    return settings.threads if settings.device.type == "cpu" else (1,)


def _copy_rate(x: Tensor, settings: BenchSettings, threads: int) -> float | None:
    """Bytes per second that a copy of the bucket reads and writes; None if the clock has not advanced."""
    target = torch.empty_like(x)
    case = Case(lambda: target.copy_(x), (x,), (target,))
    return quotient(case.bytes_read + case.bytes_written, _time(case, settings, threads).shortest_s)


def _rows(
    operation: Operation, x: Tensor, copy_rate: Mapping[int, float | None], settings: BenchSettings
) -> Iterator[BenchRow]:
    peers = _time_peers(operation, x, settings)
    default_s: float | None = None

    def row(case: Case, name: str, threads: int, times: Times, others: Mapping[str, Times]) -> BenchRow:
        return BenchRow.of(
            case,
            times,
            operation=operation.name,
            dtype=str(x.dtype).removeprefix("torch."),
            numel=x.numel(),
            implementation=name,
            threads=threads,
            value_bytes=x.nbytes,
            copy_bytes_per_s=copy_rate[threads],
            default_s=default_s,
            peers_s={peer: found.shortest_s for peer, found in others.items()},
        )

    for name, threads in _implementations(settings):
        with using_kernels(name):  # a case may hold what these kernels have made
            case = operation.make(x)
            times = _time(case, settings, threads)
        default_s = times.shortest_s if default_s is None else default_s
        yield row(case, name, threads, times, peers)
    for name, times in peers.items():
        yield row(case, name, 1, times, {})


def _implementations(settings: BenchSettings) -> list[tuple[str, int]]:
    """The implementations with their numbers of threads; the definition on one thread comes first."""
    compiled = [(settings.kernels, threads) for threads in _threads(settings)]
    if settings.kernels == DEFAULT:
        return [(DEFAULT, 1)]
    return [*([(DEFAULT, 1)] if settings.definition else []), *compiled]


def _time_peers(operation: Operation, x: Tensor, settings: BenchSettings) -> dict[str, Times]:
    """Times the available peers, on one thread."""
    calls = {peer.name: peer.make(x) for peer in operation.peers}
    return {name: _time(Case(run, (x,), ()), settings, 1) for name, run in calls.items() if run is not None}


def _time(case: Case, settings: BenchSettings, threads: int) -> Times:
    if settings.device.type == "cpu":
        return time_on_cpu(case.run, settings.seconds, threads)
    return time_on_gpu(case.run, settings.seconds, case.bytes_read + case.bytes_written, settings.device)
