"""CUDA graphs, and the clock that times the work within one.

A graph is captured once and launched many times. `GraphClock` puts marks between the captured work; each
launch passes them, and `seconds` says when the last launch has. Marks of a GPU are external events (PyTorch ≥
2.8): `record()` while capturing adds a node to the graph, which records the event anew in every launch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch


class GraphClock(Protocol):
    """Takes timestamps within one graph."""

    def timestamp(self) -> object:
        """Adds a mark to the graph that is being captured, after the work that the current stream has been
        given so far."""
        ...

    def seconds(self, mark: object) -> float:
        """When the last launch passed `mark`, in seconds of the stopwatch. That launch must have ended, and
        the next one must not have begun."""
        ...


class GraphPool:
    """Memory that several graphs take turns with, for what lives only within a launch.

    A capture may be given memory that an earlier capture in the same pool has freed, and a launch then
    overwrites what the other graph's launch has left there. That is safe if

    - their launches never run at the same time: all graphs of a pool are captured on one stream, and all are
      launched on one stream, where each launch begins when the one before has ended;
    - no launch reads what an earlier one has left in memory that its capture has allocated: state that lasts
      from step to step is made before the capture (`Capturable.prepare`), which tests hold every codec to;
    - what is read after a launch is not freed: a graph's owner keeps its result, and memory in use is given
      to no other capture.

    Once all graphs of a pool are gone, PyTorch ends it: later graphs need another one.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        """PyTorch's name for it, from the first capture on a GPU on."""


class Graph(Protocol):
    """A CUDA graph, or a substitute in tests. It is captured once."""

    def capture(self, work: Callable[[], None], pool: GraphPool | None = None) -> None:
        """Records the work that `work` starts on the current stream, without running it; what that allocates
        comes from the pool, or its own. Raises RuntimeError if `work` does something that cannot be
        captured."""
        ...

    def launch(self) -> None:
        """Runs it on the current stream."""
        ...

    def clock(self, seconds: Callable[[Any], float]) -> GraphClock:
        """A clock for its work; `seconds` converts timestamps of the rank's stopwatch."""
        ...


class CudaGraph:
    """PyTorch's CUDA graph. Neither capture nor launch waits for the device or blocks other threads."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None], pool: GraphPool | None = None) -> None:
        pool = pool or GraphPool()
        if pool.handle is None:
            pool.handle = torch.cuda.graph_pool_handle()
        # `torch.cuda.graph` would first wait for the device. That can deadlock: a launch of another bucket in
        # flight may depend on a rank that waits in the same manner for this bucket's launch.
        self._graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # that of `work` says more
                self._graph.capture_end()
            raise
        self._graph.capture_end()

    def launch(self) -> None:
        self._graph.replay()

    def clock(self, seconds: Callable[[Any], float]) -> GraphClock:
        return CudaGraphClock(seconds)


class CudaGraphClock:
    """Marks are external events; `seconds` is that of the rank's stopwatch, whose anchor is an event outside
    the graph."""

    def __init__(self, seconds: Callable[[Any], float]) -> None:
        self._seconds = seconds

    def timestamp(self) -> object:
        event = torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, mark: object) -> float:
        return self._seconds(mark)
