"""A process's captured rounds: which of a step's collectives are launched, with marks or without, and what
the record says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from gradwire.codecs.interface import Capture
from gradwire.harness.comm.collective.arena import Arena
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.transport.captured_rounds import Capturable, CapturedRound, CapturedRounds
from gradwire.harness.comm.transport.captured_task import CapturedTask
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.comm.transport.graph import Graph
from gradwire.harness.comm.transport.launch_times import LaunchTimes
from gradwire.harness.comm.transport.mark_cost import UNKNOWN, MarkCost
from gradwire.harness.comm.transport.process import MessageGroup, ProcessChannel, driven
from gradwire.harness.comm.transport.round_marks import RoundMarks
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.trace.log import TaskLog


class CapturedPlace(NamedTuple):
    """The place where a captured round sends its messages: the communicator and its index, the number of the
    collective, and what connects the ranks."""

    carrier: MessageGroup
    number: int
    communicator: int
    fabric: Fabric
    device: torch.device


@dataclass(frozen=True)
class DueRound:
    """A collective whose round is launched."""

    rounds: CapturedRounds
    captured: CapturedRound
    collective: Capturable

    @property
    def _marks(self) -> RoundMarks | None:
        return None if self.captured.times is None else self.captured.times.marks

    @property
    def is_marked(self) -> bool:
        return self._marks is not None

    def task(
        self,
        place: CapturedPlace,
        uncaptured: Callable[[], CollectiveTask],
        future: Any,
        counted: Traffic,
        log: TaskLog | None,
    ) -> CapturedTask:
        """The task that captures and launches it; `uncaptured` makes the one to run if that fails."""
        return CapturedTask(
            rounds=self.rounds,
            captured=self.captured,
            key=self.collective.key,
            communicator=place.communicator,
            prepare=self.collective.prepare,
            drive=partial(self._drive, place),
            uncaptured=uncaptured,
            future=future,
            counted=counted,
            log=log,
        )

    def _drive(self, place: CapturedPlace, capture: Capture, traffic: Traffic) -> Any:
        """Runs a round that is being captured, with message buffers of its own."""
        marks, timestamp = self._marks, _no_timestamp
        if marks is not None:
            marks.begin()
            timestamp = marks.timestamp
        log = None if marks is None else marks.log
        channel = ProcessChannel(place.carrier, place.number, traffic, timestamp, log)
        collectives = ScheduledCollectives(channel, place.fabric, Arena(place.device))
        coroutine = self.collective.captured(capture)(collectives)
        return driven(coroutine) if marks is None else marks.drive(coroutine)


def _no_timestamp() -> object:
    return None


@dataclass(frozen=True)
class CapturedBuckets:
    """A run's record of captured rounds: how many `buckets` a step has, of how many the rounds are
    `captured`, and why the others' are not, with their number.

    Marks are taken in one step of `spans_every`; there they add `marks_share` to a round's time, null if that
    was not measured. `marks` is the number of marks in the rounds of a step. `recaptured` counts the rounds
    that were captured anew because the sizes of their messages had changed.
    """

    buckets: int
    captured: int
    refused: Mapping[str, int] = field(default_factory=dict)
    spans_every: int | None = None
    marks_share: float | None = None
    marks: int = 0
    recaptured: int = 0


def joined(records: Iterable[CapturedBuckets]) -> CapturedBuckets | None:
    """The record of the buckets of several worlds, none of whose rounds is timed; None without any."""
    found = list(records)
    if not found:
        return None
    refused = sum((Counter(each.refused) for each in found), Counter[str]())
    captured = sum(each.captured for each in found)
    recaptured = sum(each.recaptured for each in found)
    return CapturedBuckets(
        sum(each.buckets for each in found), captured, dict(refused), recaptured=recaptured
    )


class CapturedWork:
    """The captured rounds of a process in its steps; with `spans` their work is timed in some steps, with
    `traces` logged there."""

    def __init__(self, rounds: CapturedRounds, recorder: Recorder, *, spans: bool, traces: bool) -> None:
        self.rounds, self.cost = rounds, MarkCost()
        self._recorder, self._traces = recorder, traces
        self._times = spans or traces
        self._step = 0
        if self._times:
            rounds.make_times = self._make_times

    def begin_step(self, step: int) -> None:
        self._step = step
        self.rounds.discard_failed()  # tasks of the step before hold what they launch themselves

    def due(self, collective: Any, buffers: str, communicator: int) -> DueRound | None:
        """The round to launch instead of running `collective`; see `CapturedRounds.due`."""
        marked = self._times and self.cost.takes(self._step)
        captured = self.rounds.due(collective, buffers, communicator, marked=marked)
        if captured is None:
            return None
        if self._times and not marked:
            self._recorder.leave_out()
        return DueRound(self.rounds, captured, collective)

    def _make_times(self, graph: Graph, bucket: Hashable, marked: bool) -> LaunchTimes:
        clock = graph.clock(self._recorder.seconds) if marked else None
        marks = None if clock is None else RoundMarks(clock, logs=self._traces)
        return LaunchTimes(bucket, self._recorder, self.cost, marks)

    @property
    def cost_is_open(self) -> bool:
        """True while the ranks have to agree on the steps that are timed; the same on all ranks."""
        return self._times and self.cost.is_open

    def own_share(self) -> float:
        """`MarkCost.own_share`; 0 on a rank that launches nothing any more."""
        share = self.cost.own_share()
        return 0.0 if share == UNKNOWN and self.rounds.failed else share

    def report(self) -> CapturedBuckets:
        reasons = self.rounds.reasons.values()
        marks = [each.times.marks for each in self.rounds if each.times is not None]
        timed = self._times and any(reason is None for reason in reasons)
        return CapturedBuckets(
            buckets=len(reasons),
            captured=sum(reason is None for reason in reasons),
            refused=dict(Counter(reason for reason in reasons if reason is not None)),
            spans_every=self.cost.every if timed else None,
            marks_share=self.cost.share,
            marks=sum(each.count for each in marks if each is not None),
            recaptured=self.rounds.recaptured,
        )
