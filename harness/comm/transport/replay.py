"""Rounds that are captured once, in a CUDA graph, and replayed in later steps.

The host then starts a bucket's whole round, messages included, by one call: what a step changes are values on
the device, the gradient in its bucket and the key of the round's random bits. A graph holds on to memory: to
the bucket, to all that the round has made, and to a communicator.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic

SETTLING = 2
"""Rounds of a bucket before the one that is captured: in these a codec makes what it keeps, and NCCL connects
the ranks."""

MOST_PLACES = 64
"""Places in memory that are known of a bucket: one that lies elsewhere every time is not captured."""

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Graph(Protocol):
    """What CUDA launches, kept; made for one capture."""

    def capture(self, work: Callable[[], None]) -> None:
        """Keep what `work` launches on the current stream, without running it. Raises RuntimeError if it does
        something that cannot be kept."""
        ...

    def replay(self) -> None:
        """Run it on the current stream."""
        ...


class CudaGraph:
    """PyTorch's, with memory of its own. Other threads go on meanwhile."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            work()

    def replay(self) -> None:
        self._graph.replay()


@runtime_checkable
class Capturable(Protocol):
    """A collective of which other steps differ in nothing but its key and the values that it is given."""

    @property
    def key(self) -> Key:
        """This step's."""
        ...

    @property
    def place(self) -> Hashable | None:
        """What must be the same in the steps that replay it: whose collective, of what, where in memory. None
        for one that cannot be captured."""
        ...

    def captured(self, capture: Capture) -> Any:
        """The collective that is captured: a function of `ScheduledCollectives`, as this one is."""
        ...


class ReplayedRound:
    """One bucket's round of this rank, on one communicator."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph = graph
        self._words = torch.zeros((), dtype=torch.int64, device=device)
        self.given = Capture(self._words.view(1).view(torch.int32))
        self.traffic: Traffic | None = None
        """What a replay sends; None before the capture."""
        self.result: Any = None

    def capture(self, drive: Callable[[Capture, Traffic], Any], traffic: Traffic) -> None:
        """Capture what `drive` does with these; it returns the round's result. `traffic` counts from 0 on."""

        def work() -> None:
            self.result = drive(self.given, traffic)

        self._graph.capture(work)
        self.traffic = Traffic(traffic.node)
        self.traffic.include(traffic)

    def replay(self, key: Key) -> None:
        """Run the round with this key; the result is in the memory that it always is in."""
        self._words.fill_(_signed(key[0] | key[1] << 32))
        self._graph.replay()


def _signed(word: int) -> int:
    """An unsigned 64-bit number as the signed one with its bits."""
    return word - (1 << 64) if word >> 63 else word


@dataclass
class _Place:
    """What is known of a bucket's round at one place: how often it has run, and its capture."""

    rounds: int = 0
    replayed: ReplayedRound | None = None


class Replays:
    """The captured rounds of a process's rank.

    Where capturing fails a round runs as it would have, and so do all later ones: that is told once, or, if
    graphs are `required`, raised.
    """

    def __init__(self, make_graph: Callable[[], Graph], device: torch.device, *, required: bool) -> None:
        self._make_graph, self._device, self._required = make_graph, device, required
        self._places: dict[tuple[Hashable, int], dict[Hashable, _Place]] = {}
        self._failed, self._lock = False, threading.Lock()
        self.count = 0
        """Rounds replayed so far."""

    def due(self, collective: Any, buffers: str, line: int) -> ReplayedRound | None:
        """The round to replay, or to capture, in the place of `collective`, which uses these message buffers
        on communicator number `line`; None: it runs as it is."""
        if self._failed or not isinstance(collective, Capturable) or (place := collective.place) is None:
            return None
        places = self._places.setdefault((buffers, line), {})
        if place not in places and len(places) == MOST_PLACES:
            return None
        found = places.setdefault(place, _Place())
        found.rounds += 1
        if found.rounds <= SETTLING:
            return None
        if found.replayed is None:
            found.replayed = ReplayedRound(self._make_graph(), self._device)
        return found.replayed

    def fail(self, error: BaseException) -> None:
        """Capture no more. Raises RuntimeError if graphs are required."""
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if self._required:
            raise RuntimeError(f"a round cannot be captured in a CUDA graph: {reason}") from error
        with self._lock:
            told, self._failed = self._failed, True
        if told:
            return
        self.forget()
        logger.warning(
            "gradwire: rounds are not replayed as CUDA graphs, because one cannot be captured: %s", reason
        )

    def forget(self) -> None:
        """Forget all captures, once they have run: the buckets change."""
        if self._places and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._places.clear()


class ReplayTask(Generic[Result]):
    """A round that a communication thread captures, if that has not been done, and replays."""

    def __init__(
        self,
        replays: Replays,
        replayed: ReplayedRound,
        key: Key,
        drive: Callable[[Capture, Traffic], Result],
        instead: Callable[[], CollectiveTask],
        finish: Callable[[Result], None],
        fail: Callable[[BaseException], None],
        counted: Traffic,
        started: Callable[[], None],
    ) -> None:
        """`drive` runs the round's coroutine to its end, `instead` makes the task that runs it uncaptured.
        What a replay sends counts in `counted`; `started` is called once it is on its way."""
        self._replays, self._replayed, self._key = replays, replayed, key
        self._drive, self._instead, self._finish, self._fail = drive, instead, finish, fail
        self._counted, self._started = counted, started
        self.ready: torch.cuda.Event | None = None
        """When the inputs are ready on the stream that made them."""

    def capture(self) -> CollectiveTask | None:
        """Captures the round if it has not been captured; returns the task to run in its place if that is
        impossible. Nothing runs yet."""
        if self._replayed.traffic is not None:
            return None
        try:
            self._replayed.capture(self._drive, Traffic(self._counted.node))
        except RuntimeError as error:
            self._replays.fail(error)
            return self._instead()
        return None

    @property
    def is_captured(self) -> bool:
        return self._replayed.traffic is not None

    def replay(self) -> None:
        """Starts the round on the current stream and hands over its result."""
        assert self._replayed.traffic is not None
        self._replayed.replay(self._key)
        self._started()
        self._counted.include(self._replayed.traffic)
        self._replays.count += 1
        self._finish(self._replayed.result)

    def cancel(self, error: BaseException) -> None:
        """Report `error` as the outcome."""
        self._fail(error)


def make_replays(graphs: str, device: torch.device) -> Replays | None:
    """What keeps captured rounds, as `graphs`, one of `GRAPHS`, says; None where none are."""
    if graphs == "never" or device.type != "cuda":
        return None
    return Replays(CudaGraph, device, required=graphs == "always")
