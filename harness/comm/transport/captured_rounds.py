"""Captured rounds: a bucket's round is captured once, in a CUDA graph, which later steps launch.

The host then starts the whole round, messages included, with one call. A step changes only values on the
device: the gradient in its bucket, and the key of the round's random bits. A graph keeps all memory that the
round has allocated. It reads the bucket at the address where it was captured, so it is launched only for a
bucket at the same address.

In the order of a bucket's rounds: `CapturedRounds.due` counts the first rounds, which run uncaptured, and
then returns a `CapturedRound`; a communication thread runs it as a `CapturedTask`, which captures the round
the first time and launches it; `LaunchWatch` ends the process if a launch does not complete. A rank that
records spans captures the round a second time, with marks (`LaunchTimes`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.comm.transport.graph import CudaGraph, Graph, GraphClock, GraphPool
from gradwire.harness.comm.transport.launch_times import LaunchTimes
from gradwire.harness.comm.transport.launch_watch import LaunchWatch, end_process
from gradwire.harness.timing.trace.log import TaskLog

SETTLING = 2
"""Rounds of a bucket before the one that is captured: in these rounds a codec creates its persistent tensors,
and NCCL connects the ranks."""

MOST_ADDRESSES = 2
"""The number of addresses of a bucket at which its round may be captured; a bucket that keeps moving is not
captured."""

MOVES = "its bucket does not stay at its place in memory"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """The properties that steps must share to launch the same captured round: its `subject`, i.e. the
    collective and its operand, the `address` of its bucket, or the addresses of all ranks' buckets, and the
    `form` of its messages. In another form it is captured anew."""

    subject: Hashable
    address: Hashable
    form: Hashable = None


class Capturable(ABC):
    """A collective that does the same work in every step, except for its key and the values in its bucket."""

    @property
    @abstractmethod
    def key(self) -> Key:
        """The key of this step's random bits."""

    @abstractmethod
    def identity(self) -> Identity | str:
        """The identity of this step's round, or the reason why this step has to do more than others, so that
        it cannot be launched."""

    @abstractmethod
    def refusal(self) -> str | None:
        """None, or the reason why the collective can never be captured."""

    def prepare(self) -> None:
        """Called before it is captured: gives the state that lasts from step to step its places."""
        return

    @abstractmethod
    def captured(self, capture: Capture) -> Any:
        """Returns the collective to capture: a function of `ScheduledCollectives`, like this one."""


class CapturedRound:
    """One bucket's round of this rank, on one communicator, in memory of a `pool`, by default its own.
    `times`, if given, times its launches."""

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        times: LaunchTimes | None = None,
        pool: GraphPool | None = None,
    ) -> None:
        self._graph, self.times, self._pool = graph, times, pool
        self._words = torch.zeros((), dtype=torch.int64, device=device)
        self.given = Capture(self._words.view(1).view(torch.int32))
        self.traffic: Traffic | None = None
        """The bytes that a launch sends; None before the capture."""
        self.result: Any = None

    def clock(self, seconds: Callable[[Any], float]) -> GraphClock:
        """A clock for its work; `seconds` converts timestamps of the rank's stopwatch."""
        return self._graph.clock(seconds)

    def capture(self, drive: Callable[[Capture, Traffic], Any], traffic: Traffic) -> None:
        """Captures the work of `drive`, which returns the round's result. `traffic` counts its bytes from
        0.
        """

        def work() -> None:
            self.result = drive(self.given, traffic)

        self._graph.capture(work, self._pool)
        self.traffic = Traffic(traffic.node)
        self.traffic.include(traffic)

    def launch(self, key: Key, log: TaskLog | None = None) -> None:
        """Runs the round with this key; its result is always in the same memory. `log` gets the times of this
        launch if the round has marks."""
        for act in self.given.before_launch:
            act()
        word = key[0] | key[1] << 32
        self._words.fill_(word - (1 << 64) if word >> 63 else word)  # the signed number with its bits
        if self.times is None:
            self._graph.launch()
        else:
            self.times.launch(self._graph.launch, log)


@dataclass
class _AtAddress:
    """The number of rounds of a bucket at one address so far, and the captures for that address, in the
    latest form: with and without marks."""

    rounds: int = 0
    form: Hashable = None
    captured: dict[bool, CapturedRound] = field(default_factory=dict)


MakeTimes = Callable[[Graph, Hashable, bool], LaunchTimes]
"""Makes the times of a graph's launches, given the bucket's name and whether the graph has marks."""


class CapturedRounds:
    """The captured rounds of a process's rank.

    If capturing fails, this round and all later ones on this rank run uncaptured; this causes one warning or,
    if graphs are `required`, an error. Once `watch` was called, a launch on a GPU that does not complete in
    time ends the process. `make_times` is set by a world that records spans. All rounds on a communicator
    share the memory of a pool: they run one after another on one stream.
    """

    def __init__(self, make_graph: Callable[[], Graph], device: torch.device, *, required: bool) -> None:
        self._make_graph, self._device, self._required = make_graph, device, required
        self._known: dict[Hashable, dict[Hashable, _AtAddress]] = {}
        self._pools: dict[int, GraphPool] = {}
        self._lock = threading.Lock()
        self._watch: LaunchWatch | None = None
        self._refusal: str | None = None
        self.make_times: MakeTimes | None = None
        self.failure: str | None = None
        """Why a capture has failed; None if none has."""
        self.reasons: dict[str, str | None] = {}
        """For each bucket's message buffers why its latest round was not captured; None if it was."""
        self.launches = 0
        """Rounds launched so far."""
        self.recaptured = 0
        """Rounds captured anew so far, in another form."""
        # NCCL cannot destroy a communicator while graphs that use it exist.
        weakref.finalize(self, self._known.clear)

    def watch(self, rank: int, timeout_s: float) -> None:
        """Limits launches to `timeout_s` seconds; `rank` is this process's."""
        if self._device.type == "cuda":
            self._watch = LaunchWatch(timeout_s, partial(end_process, rank, timeout_s))

    def refuse(self, reason: str) -> None:
        """Has every round run uncaptured for this reason, or raise an error if graphs are required."""
        self._refusal = reason

    @property
    def failed(self) -> bool:
        """True once a capture has failed."""
        return self.failure is not None

    @property
    def is_open(self) -> bool:
        """True unless all rounds run uncaptured, because a capture has failed or `refuse` was called."""
        return not self.failed and self._refusal is None

    def due(
        self, collective: Any, buffers: str, communicator: int, *, marked: bool = False
    ) -> CapturedRound | None:
        """Returns the round to capture or launch instead of running `collective`, `marked` with marks, or
        None if it must run uncaptured.

        `buffers` names its message buffers and `communicator` is the index of the rank's communicator that it
        uses. Raises RuntimeError, in one line, if graphs are required but the collective cannot be captured.
        """
        refusal, identity = None, self._identity(collective)
        if isinstance(identity, str):
            if isinstance(collective, Capturable):
                refusal = self._refusal or collective.refusal()
            if refusal is not None and self._required:
                raise RuntimeError(f"a round cannot be captured in a CUDA graph: {refusal}")
            self.reasons[buffers] = refusal or identity
            return None
        addresses = self._known.setdefault((buffers, communicator, identity.subject), {})
        if identity.address not in addresses and len(addresses) == MOST_ADDRESSES:
            self.reasons[buffers] = MOVES
            return None
        known = addresses.setdefault(identity.address, _AtAddress())
        known.rounds += 1
        if known.rounds <= SETTLING:
            self.reasons.setdefault(buffers, f"has run {SETTLING} times at most")
            return None
        self.reasons[buffers] = None
        if known.form != identity.form:  # a launch that still runs ends first: CUDA keeps its graph that long
            self.read_times(wait=True)
            self.recaptured += bool(known.captured)
            known.form, known.captured = identity.form, {}
        if marked not in known.captured:
            graph = self._make_graph()
            times = None if self.make_times is None else self.make_times(graph, buffers, marked)
            pool = self._pools.setdefault(communicator, GraphPool())
            known.captured[marked] = CapturedRound(graph, self._device, times, pool)
        return known.captured[marked]

    def _identity(self, collective: Any) -> Identity | str:
        """The identity of a round that can be captured, or a reason why not."""
        if self.failure is not None:
            return self.failure
        if not isinstance(collective, Capturable):
            return "is no synchronization of a bucket"
        return self._refusal or collective.refusal() or collective.identity()

    def __iter__(self) -> Iterator[CapturedRound]:
        """All of them, captured or about to be."""
        for addresses in list(self._known.values()):
            for known in list(addresses.values()):
                yield from list(known.captured.values())

    def read_times(self, *, wait: bool) -> None:
        """Reads the times of launches that have ended; with `wait` of all, for whose end the host waits."""
        for captured in self:
            if captured.times is not None:
                captured.times.read(wait=wait)

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
            was_known, self.failure = self.failed, self.failure or reason
        if not was_known:
            logger.warning(
                "gradwire: rounds do not run as CUDA graphs, because one cannot be captured: %s", reason
            )

    def discard_failed(self) -> None:
        """Frees the memory of all captures once one has failed, because none is launched any more. A launch
        that still runs ends first: CUDA keeps its graph that long."""
        if self.failed:
            self.read_times(wait=True)
            self._known.clear()
            self._pools.clear()

    def forget(self, *, wait: bool = True) -> None:
        """Discards all captures, because the buckets change; with `wait`, after they have finished running
        and their times were read.
        """
        if wait and self._known and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if wait:
            self.read_times(wait=True)
        self._known.clear()
        self._pools.clear()
        self.reasons.clear()

    def close(self, *, failed: bool) -> None:
        """Discards all captures, and ends the watch.

        Launches in flight complete first, or the watch ends the process; if something has `failed`, they are
        not waited for.
        """
        self.forget(wait=not failed)
        if self._watch is not None:
            self._watch.close()


def make_captured_rounds(graphs: str, device: torch.device) -> CapturedRounds | None:
    """The captured rounds of a rank for a value of `comm.settings.GRAPHS`; None if nothing is captured."""
    if graphs == "never" or device.type != "cuda":
        return None
    return CapturedRounds(CudaGraph, device, required=graphs == "always")
