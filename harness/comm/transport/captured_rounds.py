"""Captured rounds: a bucket's round is captured once, in a CUDA graph, which later steps launch.

The host then starts the whole round, messages included, with one call. A step changes only values on the
device: the gradient in its bucket, and the key of the round's random bits. A graph keeps all memory that the
round has allocated. It reads the bucket at the address where it was captured, so it is launched only for a
bucket at the same address.

In the order of a bucket's rounds: `CapturedRounds.due` counts the first rounds, which run uncaptured, and
then returns a `CapturedRound`; a communication thread runs it as a `CapturedTask`, which captures the round
the first time and launches it; `LaunchWatch` ends the process if a launch does not complete.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic

SETTLING = 2
"""Rounds of a bucket before the one that is captured: in these rounds a codec creates its persistent tensors,
and NCCL connects the ranks."""

MOST_ADDRESSES = 2
"""The number of addresses of a bucket at which its round may be captured; a bucket that keeps moving is not
captured."""

POLL_S = 0.5
"""Seconds between two checks of launches."""

logger = logging.getLogger(__name__)


class Graph(Protocol):
    """A CUDA graph, or a substitute in tests. It is captured once."""

    def capture(self, work: Callable[[], None]) -> None:
        """Records the work that `work` starts on the current stream, without running it. Raises RuntimeError
        if `work` does something that cannot be captured."""
        ...

    def launch(self) -> None:
        """Runs it on the current stream."""
        ...


class CudaGraph:
    """PyTorch's CUDA graph with its own memory pool. Neither capture nor launch waits for the device or
    blocks other threads."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        # `torch.cuda.graph` would first wait for the device. That can deadlock: a launch of another bucket in
        # flight may depend on a rank that waits in the same manner for this bucket's launch.
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # that of `work` says more
                self._graph.capture_end()
            raise
        self._graph.capture_end()

    def launch(self) -> None:
        self._graph.replay()


@dataclass(frozen=True)
class Identity:
    """The properties that steps must share to launch the same captured round: its `subject`, i.e. the
    collective and its operand, and the `address` of its bucket."""

    subject: Hashable
    address: int


class Capturable(ABC):
    """A collective that does the same work in every step, except for its key and the values in its bucket."""

    @property
    @abstractmethod
    def key(self) -> Key:
        """The key of this step's random bits."""

    @abstractmethod
    def identity(self) -> Identity | None:
        """The identity of this step's round; None if this step has to do more than others, so that it cannot
        be launched."""

    @abstractmethod
    def refusal(self) -> str | None:
        """None, or the reason why the collective can never be captured."""

    @abstractmethod
    def captured(self, capture: Capture) -> Any:
        """Returns the collective to capture: a function of `ScheduledCollectives`, like this one."""


class CapturedRound:
    """One bucket's round of this rank, on one communicator."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph = graph
        self._words = torch.zeros((), dtype=torch.int64, device=device)
        self.given = Capture(self._words.view(1).view(torch.int32))
        self.traffic: Traffic | None = None
        """The bytes that a launch sends; None before the capture."""
        self.result: Any = None

    def capture(self, drive: Callable[[Capture, Traffic], Any], traffic: Traffic) -> None:
        """Captures the work of `drive`, which returns the round's result. `traffic` counts its bytes from
        0.
        """

        def work() -> None:
            self.result = drive(self.given, traffic)

        self._graph.capture(work)
        self.traffic = Traffic(traffic.node)
        self.traffic.include(traffic)

    def launch(self, key: Key) -> None:
        """Runs the round with this key; its result is always in the same memory."""
        word = key[0] | key[1] << 32
        self._words.fill_(word - (1 << 64) if word >> 63 else word)  # the signed number with its bits
        self._graph.launch()


@dataclass
class _AtAddress:
    """The number of rounds of a bucket at one address so far, and the capture for that address."""

    rounds: int = 0
    captured: CapturedRound | None = None


class CapturedRounds:
    """The captured rounds of a process's rank.

    If capturing fails, this round and all later ones on this rank run uncaptured; this causes one warning or,
    if graphs are `required`, an error. Once `watch` was called, a launch on a GPU that does not complete in
    time ends the process.
    """

    def __init__(self, make_graph: Callable[[], Graph], device: torch.device, *, required: bool) -> None:
        self._make_graph, self._device, self._required = make_graph, device, required
        self._known: dict[Hashable, dict[int, _AtAddress]] = {}
        self._lock = threading.Lock()
        self._watch: LaunchWatch | None = None
        self.failed = False
        """True once a capture has failed."""
        self.launches = 0
        """Rounds launched so far."""
        # NCCL cannot destroy a communicator while graphs that use it exist.
        weakref.finalize(self, self._known.clear)

    def watch(self, rank: int, timeout_s: float) -> None:
        """Limits launches to `timeout_s` seconds; `rank` is this process's."""
        if self._device.type == "cuda":
            self._watch = LaunchWatch(timeout_s, partial(end_process, rank, timeout_s))

    def due(self, collective: Any, buffers: str, communicator: int) -> CapturedRound | None:
        """Returns the round to capture or launch instead of running `collective`, or None if it must run
        uncaptured.

        `buffers` names its message buffers and `communicator` is the index of the rank's communicator that it
        uses. Raises RuntimeError, in one line, if graphs are required but the collective cannot be captured.
        """
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
        known = addresses.setdefault(identity.address, _AtAddress())
        known.rounds += 1
        if known.rounds <= SETTLING:
            return None
        if known.captured is None:
            known.captured = CapturedRound(self._make_graph(), self._device)
        return known.captured

    def launched(self, communicator: int) -> None:
        """Starts watching a launch that has just been put on the current stream."""
        if self._watch is not None:
            self._watch.started(communicator, torch.cuda.current_stream(self._device).record_event())

    def fail(self, error: BaseException) -> None:
        """Stops capturing and launching. Raises RuntimeError if graphs are required."""
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if self._required:
            raise RuntimeError(f"a round cannot be captured in a CUDA graph: {reason}") from error
        with self._lock:
            was_known, self.failed = self.failed, True
        if not was_known:
            logger.warning(
                "gradwire: rounds do not run as CUDA graphs, because one cannot be captured: %s", reason
            )

    def forget(self, *, wait: bool = True) -> None:
        """Discards all captures, because the buckets change; with `wait`, after they have finished
        running.
        """
        if wait and self._known and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._known.clear()

    def close(self, *, failed: bool) -> None:
        """Discards all captures, and ends the watch.

        Launches in flight complete first, or the watch ends the process; if something has `failed`, they are
        not waited for.
        """
        self.forget(wait=not failed)
        if self._watch is not None:
            self._watch.close()


@dataclass
class CapturedTask:
    """A round that a communication thread launches, after capturing it the first time.

    `drive` runs the round's coroutine to its end, `uncaptured` makes the task that runs it without a graph.
    `future` receives the result, `counted` the bytes that a launch sends.
    """

    rounds: CapturedRounds
    captured: CapturedRound
    key: Key
    communicator: int
    drive: Callable[[Capture, Traffic], Any]
    uncaptured: Callable[[], CollectiveTask]
    future: Any
    counted: Traffic
    ready: torch.cuda.Event | None = None
    """Recorded when the inputs are ready on the stream that made them."""

    @property
    def is_captured(self) -> bool:
        return self.captured.traffic is not None

    def capture(self) -> CollectiveTask | None:
        """Captures the round without running it; returns the task to run instead if capturing is
        impossible.
        """
        if self.rounds.failed:
            return self.uncaptured()
        try:
            self.captured.capture(self.drive, Traffic(self.counted.node))
        except RuntimeError as error:
            self.rounds.fail(error)
            return self.uncaptured()
        return None

    def launch(self) -> None:
        """Starts the round on the current stream."""
        self.captured.launch(self.key)
        self.rounds.launched(self.communicator)

    def count(self) -> None:
        """Counts the bytes that the launch sends."""
        assert self.captured.traffic is not None
        self.counted.include(self.captured.traffic)
        self.rounds.launches += 1

    def finish(self) -> None:
        """Sets the result of the future."""
        self.future.set_result(self.captured.result)

    def cancel(self, error: BaseException) -> None:
        """Sets `error` as the outcome."""
        self.future.set_exception(error)


def make_captured_rounds(graphs: str, device: torch.device) -> CapturedRounds | None:
    """The captured rounds of a rank for a value of `comm.settings.GRAPHS`; None if nothing is captured."""
    if graphs == "never" or device.type != "cuda":
        return None
    return CapturedRounds(CudaGraph, device, required=graphs == "always")


def end_process(rank: int, timeout_s: float) -> None:
    """Ends this process, as PyTorch does when NCCL's own messages time out: the launch lacks the message of a
    lost rank, so its result must not be used."""
    logger.critical(
        "gradwire: rank %d: a captured round has not completed within %g s: another rank is lost or "
        "late; this "
        "process ends",
        rank,
        timeout_s,
    )
    sys.stderr.flush()
    os._exit(1)


class Event(Protocol):
    """The methods of a CUDA event that the watch uses."""

    def query(self) -> bool:
        """Returns True if the recorded work has completed."""
        ...


class _Watched(NamedTuple):
    event: Event
    end: float
    """The time at which the launch is given up."""


class LaunchWatch:
    """Detects launches that do not complete; NCCL's own watchdog does not see the messages of a graph.

    The watch checks the oldest known launch of each communicator. It also keeps the newest, which it checks
    once the oldest has completed; launches between the two complete in order, before the newest. If a launch
    has not completed `timeout_s` seconds after its start, `give_up` is called, once.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None], poll_s: float = POLL_S) -> None:
        self._timeout_s, self._give_up, self._poll_s = timeout_s, give_up, poll_s
        self._oldest: dict[int, _Watched] = {}
        self._newest: dict[int, _Watched] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def started(self, communicator: int, event: Event) -> None:
        """Starts watching a launch on this communicator; `event` was recorded after it."""
        watched = _Watched(event, time.monotonic() + self._timeout_s)
        with self._lock:
            self._oldest.setdefault(communicator, watched)
            self._newest[communicator] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="launches", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._poll_s):
            if self._is_late():
                self._give_up()
                return

    def _is_late(self) -> bool:
        """Drops the launches that have completed; returns True if one is overdue."""
        with self._lock:
            for communicator, watched in list(self._oldest.items()):
                newest = self._newest[communicator]
                if watched.event.query():
                    if newest is watched:
                        del self._oldest[communicator]
                        continue
                    self._oldest[communicator] = watched = newest
                if time.monotonic() > watched.end and not watched.event.query():
                    return True
        return False
