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

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.comm.transport.graph import CudaGraph, Graph, GraphClock
from gradwire.harness.comm.transport.launch_watch import LaunchWatch, end_process

SETTLING = 2
"""Rounds of a bucket before the one that is captured: in these rounds a codec creates its persistent tensors,
and NCCL connects the ranks."""

MOST_ADDRESSES = 2
"""The number of addresses of a bucket at which its round may be captured; a bucket that keeps moving is not
captured."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """The properties that steps must share to launch the same captured round: its `subject`, i.e. the
    collective and its operand, and the `address` of its bucket, or the addresses of all ranks' buckets."""

    subject: Hashable
    address: Hashable


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

    def clock(self, seconds: Callable[[Any], float]) -> GraphClock:
        """A clock for its work; `seconds` converts timestamps of the rank's stopwatch."""
        return self._graph.clock(seconds)

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
        self._known: dict[Hashable, dict[Hashable, _AtAddress]] = {}
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


def make_captured_rounds(graphs: str, device: torch.device) -> CapturedRounds | None:
    """The captured rounds of a rank for a value of `comm.settings.GRAPHS`; None if nothing is captured."""
    if graphs == "never" or device.type != "cuda":
        return None
    return CapturedRounds(CudaGraph, device, required=graphs == "always")
