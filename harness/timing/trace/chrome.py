"""A step's timeline in the Chrome trace event format, for chrome://tracing and Perfetto.

There is one process per rank, with rows for computation and its waits, for codec work by label, and for
outgoing and incoming messages; there are enough rows that bars on a row do not overlap. An arrow leads from
each message's sending to its receipt. Work of earlier steps' collectives is shown without arrows. Times are
microseconds from the first rank's start of the step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.harness.timing.trace.messages import Interval, Sent, messages, offsets, posts
from gradwire.harness.timing.trace.step import (
    BACKEND,
    Await,
    Barrier,
    RankTrace,
    StepTrace,
    TaskTrace,
    Work,
    compute_spans,
)

Event = dict[str, Any]

COMPUTE, WAIT, CODEC, OUT, IN = "compute", "wait", "codec", "network out", "network in"
KINDS = (COMPUTE, WAIT, CODEC, OUT, IN)
"""The kinds of rows, from top to bottom."""

UNLABELLED = "python"
"""The label of codec work between two messages that has no other label."""

NANOSECONDS = 1e9


@dataclass
class Slice:
    """A bar on a row. Times are whole nanoseconds, so that rounding cannot make separate bars overlap."""

    kind: str
    name: str
    start: int
    end: int
    args: Mapping[str, Any]
    tid: int = 0


@dataclass
class _RankBars:
    """A rank's bars; `delay` is the time at which its step began and `end` its length, in seconds.

    Operations are cut at the end of the step: a communication thread delivers the last gradient, and may
    finish its own work only after the update.
    """

    delay: float
    end: float
    slices: list[Slice] = field(default_factory=list)

    def add(self, kind: str, name: str, interval: Interval, **args: Any) -> Slice:
        start, end = (round(NANOSECONDS * (min(at, self.end) + self.delay)) for at in interval)
        self.slices.append(Slice(kind, name, start, end, args))
        return self.slices[-1]


def chrome_text(trace: StepTrace, **about: Any) -> str:
    """JSON of a step, one event per line; `about` is added as metadata."""
    events = ",\n".join(json.dumps(event, ensure_ascii=False) for event in chrome_events(trace))
    return f'{{"displayTimeUnit": "ms",\n"otherData": {json.dumps(about)},\n"traceEvents": [\n{events}\n]}}\n'


def chrome_events(trace: StepTrace) -> list[Event]:
    """Metadata, bars (complete events) and arrows (flow events) of all ranks of a step."""
    found = messages(trace)
    first = min(_begin(own) for own in trace.values())
    delays = enumerate(offsets(found, len(trace)))
    ranks = {rank: _RankBars(delay - first, trace[rank].end) for rank, delay in delays}
    for rank, own in trace.items():
        _add_work(ranks[rank], own)
    ends = [_add_message(ranks, message) for message in found]
    events = _place(ranks)
    for rank, placed in ranks.items():
        bars = sorted(placed.slices, key=lambda each: (each.tid, each.start))
        events += [_bar(rank, each) for each in bars]
    for number, (message, sent, received) in enumerate(zip(found, *zip(*ends, strict=True), strict=True)):
        events += _arrow(number, message, sent, received)
    return events


def _begin(own: RankTrace) -> float:
    """The begin of the rank's step, which differs between ranks if each begins its steps when it is ready."""
    return 0.0 if own.window is None else own.window[0]


def _add_work(rank: _RankBars, own: RankTrace) -> None:
    for span in own.carried:
        kind = OUT if span.kind == "comm" else CODEC
        interval = max(span.start, _begin(own)), span.end
        rank.add(kind, f"{span.label} of an earlier step", interval, bytes=span.bytes)
    for span in compute_spans(own):
        rank.add(COMPUTE, span.label, (span.start, span.end))
    for name, interval, args in _waits(own):
        rank.add(WAIT, name, interval, **args)
    for task in own.tasks:
        for label, interval, args in _labelled(task):
            rank.add(CODEC, label, interval, bucket=task.bucket, coordinates=task.coordinates, **args)
        for post, interval in posts(task):
            if post.phase == BACKEND:
                rank.add(OUT, "all-reduce of the backend", interval, bucket=task.bucket, phase=BACKEND)


def _waits(own: RankTrace) -> Iterator[tuple[str, Interval, dict[str, Any]]]:
    """The waits of the computation."""
    for one in own.computation:
        if isinstance(one, Await | Barrier) and one.end - one.start > 1 / NANOSECONDS:
            if isinstance(one, Barrier):
                yield "all ranks", (one.start, one.end), {}
            else:
                before = f" of {one.steps_back} steps before" if one.steps_back else ""
                args = {"task": one.task, "steps_back": one.steps_back}
                yield f"result of task {one.task}{before}", (one.start, one.end), args


def _labelled(task: TaskTrace) -> Iterator[tuple[str, Interval, dict[str, Any]]]:
    """The parts of a task's work, one after another, followed by the unlabelled rest."""
    for work in task.operations:
        if not isinstance(work, Work):
            continue
        at = work.start
        for part in work.parts:
            end = min(at + part.seconds, work.end)
            yield part.label, (at, end), {"share": part.share}
            at = end
        if work.end - at > 1 / NANOSECONDS:
            yield UNLABELLED, (at, work.end), {}


def _add_message(ranks: Mapping[int, _RankBars], message: Sent) -> tuple[Slice, Slice]:
    name = f"{message.phase} {message.source}→{message.destination} {message.num_bytes} B"
    args = {"bytes": message.num_bytes, "phase": message.phase, "bucket": message.bucket}
    return (
        ranks[message.source].add(OUT, name, message.sent, peer=message.destination, **args),
        ranks[message.destination].add(IN, name, message.received, peer=message.source, **args),
    )


def _place(ranks: Mapping[int, _RankBars]) -> list[Event]:
    """Give every bar a row; returns the rows' names.

    Perfetto takes a thread's number for unique among all processes, and 0 for the idle thread.
    """
    events, tid = [], len(ranks)
    for rank, own in ranks.items():
        events += _named("process", rank, 0, f"rank {rank}", rank)
        for kind in KINDS:
            rows = _rows(each for each in own.slices if each.kind == kind)
            for index, row in enumerate(rows):
                tid += 1
                for each in row:
                    each.tid = tid
                events += _named("thread", rank, tid, f"{kind} {index + 1}" if index else kind, tid)
    return events


def _rows(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Distributes bars over the smallest number of rows; a bar of length 0 also occupies its place."""
    rows: list[list[Slice]] = []
    for each in sorted(slices, key=lambda each: (each.start, each.end)):
        free = (row for row in rows if max(row[-1].end, row[-1].start + 1) <= each.start)
        row = next(free, None)
        if row is None:
            rows.append(row := [])
        row.append(each)
    return rows


def _named(what: str, rank: int, tid: int, name: str, order: int) -> list[Event]:
    place = {"ph": "M", "pid": rank + 1, "tid": tid}
    return [
        {"name": f"{what}_name", **place, "args": {"name": name}},
        {"name": f"{what}_sort_index", **place, "args": {"sort_index": order}},
    ]


def _bar(rank: int, each: Slice) -> Event:
    times = {"ts": each.start / 1e3, "dur": (each.end - each.start) / 1e3}
    place = {"pid": rank + 1, "tid": each.tid}
    return {"ph": "X", "name": each.name, "cat": each.kind, **times, **place, "args": dict(each.args)}


def _arrow(number: int, message: Sent, sent: Slice, received: Slice) -> list[Event]:
    """An arrow from the start of a message's sending to halfway through the rest of its receipt, so that both
    ends lie inside their bars."""
    arrives = (max(sent.start, received.start) + received.end) // 2
    common = {"name": "message", "cat": "message", "id": number}
    start = {"ph": "s", "ts": sent.start / 1e3, "pid": message.source + 1, "tid": sent.tid}
    finish = {"ph": "f", "bp": "e", "ts": arrives / 1e3, "pid": message.destination + 1, "tid": received.tid}
    return [common | start, common | finish]
