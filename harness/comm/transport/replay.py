"""Rounds that are captured once, in a CUDA graph, and replayed in later steps.

The host then starts a bucket's whole round, messages included, by one call. What a step changes are values on
the device: the gradient in its bucket, and the key of the round's random bits. A graph keeps all memory that
the round has made. It finds the bucket at the address where it was captured, so a round is replayed only
where that is the same.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic

SETTLING = 2
"""Rounds of a bucket before the one that is captured: in these a codec makes what it keeps, and NCCL connects
the ranks."""

MOST_ADDRESSES = 2
"""Addresses of a bucket at which its round may be captured: one that always lies elsewhere is not."""

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Graph(Protocol):
    """A CUDA graph, or what stands for one in tests. It is captured once."""

    def capture(self, work: Callable[[], None]) -> None:
        """Keep what `work` launches on the current stream, without running it. Raises RuntimeError if it does
        something that cannot be kept."""
        ...

    def replay(self) -> None:
        """Run it on the current stream."""
        ...


class CudaGraph:
    """PyTorch's, with memory of its own. Nothing waits for the device, and other threads go on."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        # `torch.cuda.graph` would wait for the device first. A replay of another bucket that is under way may
        # wait for a rank that waits in the same manner for this bucket's.
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # that of `work` says more
                self._graph.capture_end()
            raise
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()


@dataclass(frozen=True)
class Identity:
    """What is the same in all steps that may replay one round: whose collective it is and of what, and the
    address of its bucket."""

    subject: Hashable
    address: int


class Capturable(ABC):
    """A collective that does the same in every step, except for its key and the values in its bucket."""

    @property
    @abstractmethod
    def key(self) -> Key:
        """This step's."""

    @abstractmethod
    def identity(self) -> Identity | None:
        """None in a step that has more to do than others."""

    @abstractmethod
    def refusal(self) -> str | None:
        """None, or the reason why it can be captured in no step."""

    @abstractmethod
    def captured(self, capture: Capture) -> Any:
        """The collective that is captured: a function of `ScheduledCollectives`, as this one is."""


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
class _Known:
    """How often a bucket's round has run at one address, and its capture there."""

    rounds: int = 0
    replayed: ReplayedRound | None = None


class Replays:
    """The captured rounds of a process's rank.

    Where capturing fails, this round and all later ones on this rank run uncaptured; that is warned of once
    or, if graphs are `required`, raised.
    """

    def __init__(self, make_graph: Callable[[], Graph], device: torch.device, *, required: bool) -> None:
        self._make_graph, self._device, self._required = make_graph, device, required
        self._known: dict[Hashable, dict[int, _Known]] = {}
        self._lock = threading.Lock()
        self.failed = False
        """Whether a capture has failed."""
        self.count = 0
        """Rounds replayed so far."""

    def due(self, collective: Any, buffers: str, communicator: int) -> ReplayedRound | None:
        """The round to replay, or to capture, in the place of `collective`, which uses these message buffers
        on this of the rank's communicators; None: it runs as it is. Raises RuntimeError, in one line, if
        graphs are required of a collective that allows none."""
        if self.failed or not isinstance(collective, Capturable):
            return None
        if (reason := collective.refusal()) is not None:
            if self._required:
                raise RuntimeError(f"a round cannot be captured in a CUDA graph: {reason}")
            return None
        if (identity := collective.identity()) is None:
            return None
        addresses = self._known.setdefault((buffers, communicator, identity.subject), {})
        if identity.address not in addresses and len(addresses) == MOST_ADDRESSES:
            return None
        known = addresses.setdefault(identity.address, _Known())
        known.rounds += 1
        if known.rounds <= SETTLING:
            return None
        if known.replayed is None:
            known.replayed = ReplayedRound(self._make_graph(), self._device)
        return known.replayed

    def fail(self, error: BaseException) -> None:
        """Capture and replay no more. Raises RuntimeError if graphs are required."""
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if self._required:
            raise RuntimeError(f"a round cannot be captured in a CUDA graph: {reason}") from error
        with self._lock:
            told, self.failed = self.failed, True
        if not told:
            logger.warning(
                "gradwire: rounds are not replayed as CUDA graphs, because one cannot be captured: %s", reason
            )

    def forget(self, *, wait: bool = True) -> None:
        """Forget all captures, because the buckets change: once they have run, or at once."""
        if wait and self._known and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._known.clear()


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

    @property
    def is_captured(self) -> bool:
        return self._replayed.traffic is not None

    def capture(self) -> CollectiveTask | None:
        """Captures the round; returns the task to run in its place if that is impossible. Nothing runs
        yet."""
        if self._replays.failed:
            return self._instead()
        try:
            self._replayed.capture(self._drive, Traffic(self._counted.node))
        except RuntimeError as error:
            self._replays.fail(error)
            return self._instead()
        return None

    def replay(self) -> None:
        """Starts the round on the current stream."""
        self._replayed.replay(self._key)
        self._started()

    def count(self) -> None:
        """Counts what the replay sends."""
        assert self._replayed.traffic is not None
        self._counted.include(self._replayed.traffic)
        self._replays.count += 1

    def finish(self) -> None:
        """Hands over the result."""
        self._finish(self._replayed.result)

    def cancel(self, error: BaseException) -> None:
        """Report `error` as the outcome."""
        self._fail(error)


def make_replays(graphs: str, device: torch.device) -> Replays | None:
    """The captured rounds of a rank that replays as `graphs` says, one of `comm.settings.GRAPHS`; None if it
    replays none."""
    if graphs == "never" or device.type != "cuda":
        return None
    return Replays(CudaGraph, device, required=graphs == "always")
