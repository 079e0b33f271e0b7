"""A bucket's round on all ranks of a virtual cluster, captured in one CUDA graph.

The host starts it with one call where it would otherwise take turns with every message of every rank. The
ranks' work is in the graph as they would have done it, one after another, with marks of each rank between
its pieces of work, so that the simulated clock times a launch as it does a round that runs step by step. The
graph keeps the messages and sums of all ranks.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.captured_rounds import (
    Capturable,
    CapturedRound,
    CapturedRounds,
    Identity,
)
from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.comm.transport.graph import GraphClock
from gradwire.harness.comm.world.process_captured import CapturedBuckets
from gradwire.harness.comm.world.started import Input
from gradwire.harness.timing.trace.log import TaskLog
from gradwire.harness.timing.trace.step import TRANSFERS

OTHER_BITS = "each rank has random bits of its own"


class RoundTogether(Capturable):
    """One bucket's round on all its ranks: the rounds of `ranks`, which they have started as `inputs`."""

    def __init__(self, bucket: int, ranks: Mapping[int, Capturable], inputs: Mapping[int, Input]) -> None:
        self._bucket, self._ranks, self._inputs = bucket, ranks, inputs

    @property
    def key(self) -> Key:
        return next(iter(self._ranks.values())).key

    def refusal(self) -> str | None:
        reasons = (own.refusal() for own in self._ranks.values())
        return next((reason for reason in reasons if reason is not None), None)

    def identity(self) -> Identity | str:
        """The reason of the first rank whose round has none. What traces say of the round is part of the
        identity, because the logs are captured, too."""
        identities = []
        for own in self._ranks.values():
            if isinstance(found := own.identity(), str):
                return found
            if own.key != self.key:
                return OTHER_BITS
            identities.append(found)
        logged = tuple(
            (own.submission.coordinates, own.submission.in_turn, own.submission.urgency)
            for own in self._inputs.values()
        )
        subject = (self._bucket, tuple(self._ranks), logged, tuple(own.subject for own in identities))
        return Identity(
            subject, tuple(own.address for own in identities), tuple(own.form for own in identities)
        )

    def prepare(self) -> None:
        for own in self._ranks.values():
            own.prepare()

    def captured(self, capture: Capture) -> dict[int, Any]:
        """Returns the collective to capture of each rank."""
        return {rank: own.captured(capture) for rank, own in self._ranks.items()}


@dataclass
class Driven:
    """A round that has run on all its ranks, or each launch of a captured one: results, bytes sent and log by
    rank. `seconds` converts the logs' timestamps, of which there are `marks` in a graph."""

    seconds: Callable[[Any], float]
    logs: Mapping[int, TaskLog]
    sent: Mapping[int, Traffic] = field(default_factory=dict)
    """Bytes that are still to be counted: those of a launch."""
    results: Mapping[int, Any] = field(default_factory=dict)
    marks: int = 0


class TurnMarks:
    """The `count` marks of a round on all its ranks. Nothing is started between two ranks' turns, so one mark
    serves for the end of the one and the begin of the other."""

    def __init__(self, clock: GraphClock) -> None:
        self._clock = clock
        self._latest: object = None
        self.count = 0

    def mark(self) -> object:
        """Adds a mark."""
        self._latest = self._clock.timestamp()
        self.count += 1
        return self._latest

    def turn(self) -> object:
        """The mark at the end of the turn before; a new one in the first turn."""
        return self._latest if self.count else self.mark()


Drive = Callable[[Mapping[int, Any], GraphClock], Driven]
"""Runs the collectives by rank while they are captured, timed by the graph's clock."""


class CapturedTogether:
    """The rounds of a process's ranks that can be captured: a bucket's first rounds run step by step, one is
    captured, and all later ones launch it."""

    def __init__(self, rounds: CapturedRounds, device: torch.device, seconds: Callable[[Any], float]) -> None:
        self._rounds, self._device, self._seconds = rounds, device, seconds
        self._stream: torch.cuda.Stream | None = None

    def launched(
        self, bucket: int, collectives: Mapping[int, Any], inputs: Mapping[int, Input], drive: Drive
    ) -> Driven | None:
        """Launches the round that `collectives` make together on the current stream, after capturing it the
        first time; None if it has to run step by step.

        Raises RuntimeError, in one line, if graphs are required but the round cannot be captured.
        """
        if bucket == TRANSFERS:
            return None
        names = ", ".join(sorted({own.submission.buffers for own in inputs.values()}))
        ranks = {rank: own for rank, own in collectives.items() if isinstance(own, Capturable)}
        together = RoundTogether(bucket, ranks, inputs)
        captured = self._rounds.due(together if len(ranks) == len(collectives) else None, names, 0)
        if captured is None or not self._capture(captured, together, drive):
            return None
        captured.launch(together.key)
        self._rounds.launches += 1
        found: Driven = captured.result
        return found

    def _capture(self, captured: CapturedRound, together: RoundTogether, drive: Drive) -> bool:
        """Captures the round unless it has been; False if it cannot be."""
        if captured.traffic is not None:
            return True
        clock = captured.clock(self._seconds)
        try:
            together.prepare()
            with self._capturing():
                captured.capture(lambda given, _: drive(together.captured(given), clock), Traffic())
        except RuntimeError as error:
            self._rounds.fail(error)
            self._rounds.discard_failed()
            return False
        return True

    @contextlib.contextmanager
    def _capturing(self) -> Any:
        """On a GPU makes another stream the current one, because the default stream cannot be captured."""
        if self._device.type != "cuda":
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            yield

    def report(self) -> CapturedBuckets:
        """Returns what the record says of them. All launches are timed, because the clock needs that."""
        reasons = self._rounds.reasons.values()
        driven = [captured.result for captured in self._rounds if captured.traffic is not None]
        return CapturedBuckets(
            buckets=len(reasons),
            captured=sum(reason is None for reason in reasons),
            refused=dict(Counter(reason for reason in reasons if reason is not None)),
            spans_every=1 if driven else None,
            marks=sum(each.marks for each in driven),
            recaptured=self._rounds.recaptured,
        )

    def forget(self) -> None:
        """Discards all captures, because the buckets change."""
        self._rounds.forget()
