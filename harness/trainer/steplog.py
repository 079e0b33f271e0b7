"""Combines each rank's figures of a step into one row of `steps.jsonl`.

Ranks keep their figures until the log is flushed; then one gather collects them, so that recording adds no
message to a step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.harness.comm.transport.channel import Traffic
from gradwire.harness.parallel.interface import StepOutcome
from gradwire.harness.timing.measure import step_figures
from gradwire.harness.timing.measure.machine import StepWatch, own_watch
from gradwire.harness.timing.measure.metrics import keys, of_ranks
from gradwire.harness.timing.measure.spans import Span
from gradwire.harness.timing.measure.step_figures import rank_figures, wire_bits, wire_bits_by_level
from gradwire.harness.timing.trace.log import StepNotes
from gradwire.harness.timing.trace.writer import REPORT, TraceWriter
from gradwire.harness.trainer.state import TrainingState

FIRST = ("loss", "train_time_s", "step_time_s")
"""The metrics at the beginning of a row."""

LEVELS = tuple(f"wire_bits_by_level.{level}" for level in step_figures.LEVELS)
"""Additional metrics of a row if ranks are on several nodes."""


@dataclass
class PendingStep:
    """One step before its flush: `shared` is equal on all ranks, the rest per hosted rank.

    `windows` is the interval of the step in timestamps of the rank's recorder (seconds on a simulated clock).
    `simulated_s` is its length on the simulated clock, None if real time is measured. `sent` counts the bytes
    of all collectives that the step has started, including those that end after it. `observed` holds the
    figures of `StepWatch`. A step is not `timed` if captured rounds ran in it without marks: what its spans
    would say is unknown.
    """

    shared: dict[str, Any]
    losses: Mapping[int, float]
    train_time_s: float
    windows: Mapping[int, tuple[Any, Any]]
    simulated_s: float | None
    sent: Mapping[int, Traffic]
    observed: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    spans: dict[int, list[Span]] = field(default_factory=dict)
    notes: Mapping[int, StepNotes] = field(default_factory=dict)
    timed: bool = True


class StepLog:
    """Collects steps and turns them into rows on `flush`, which every rank must call together.

    Bits per coordinate are relative to all coordinates of the settled buckets and to the `gradients_sent`
    encoded gradients of a step. If `traces` are kept, every process writes those of its ranks.
    """

    def __init__(
        self, state: TrainingState, gradients_sent: float, traces: TraceWriter | None = None
    ) -> None:
        world = self._world = state.world
        self._clock, self._tokens = state.clock, state.schedule.tokens
        self._num_coordinates, self._gradients_sent = state.layouts.coordinates, gradients_sent
        self._traces, self._has_nodes = traces, world.traffic[world.ranks[0]].node is not None
        self.watch: StepWatch | None = None
        """Observes this rank's process and machine; None on a simulated clock."""
        if self._clock.kind == "wall":
            (rank,) = world.ranks
            self.watch = own_watch(world.recorders[rank], rank, os.environ)
        self._pending: list[PendingStep] = []
        self._start: Any = None

    def begin(self) -> None:
        """Begins a step: its traffic, window and observations are counted from here on."""
        self._world.take_traffic()  # what was sent since the last step is not a step's
        if self.watch is not None:
            self.watch.begin()
        self._world.begin_step(self._clock.seconds)
        self._start = self._world.recorders[self._world.ranks[0]].timestamp()

    def end(self, outcome: StepOutcome, shared: dict[str, Any]) -> PendingStep:
        """Ends the step, and advances a simulated clock. `shared` is the part of its row that is the same on
        all ranks."""
        rank = self._world.ranks[0]
        own = (self._start, self._world.recorders[rank].timestamp())
        windows = self._world.windows() or dict.fromkeys(self._world.ranks, own)
        observed = {} if self.watch is None else {rank: self.watch.end()}
        if outcome.simulated_s is not None:
            self._clock.advance(outcome.simulated_s)
        return PendingStep(
            shared=shared,
            losses=outcome.losses,
            train_time_s=self._clock.seconds,
            windows=windows,
            simulated_s=outcome.simulated_s,
            sent=self._world.take_traffic(),
            observed=observed,
            timed=not self._has_gap(),
        )

    def _has_gap(self) -> bool:
        """True if the work of some hosted rank has left no spans in the step."""
        gaps = [self._world.recorders[rank].take_gap() for rank in self._world.ranks]
        return any(gaps)

    def close(self) -> None:
        """Ends the observation of the machine."""
        if self.watch is not None:
            self.watch.close()

    def add(self, step: PendingStep) -> None:
        """Adds a step. Spans on a simulated clock start at zero in every step and are taken out
        immediately.
        """
        if step.simulated_s is not None:
            step.spans = {rank: self._world.recorders[rank].drain() for rank in self._world.ranks}
        notes = self._world.take_notes()
        if self._traces is not None and step.timed and self._traces.takes(step.shared["step"]):
            step.notes = notes
        self._pending.append(step)

    def flush(self) -> list[dict[str, Any]]:
        """The rows of the pending steps, the same on every rank; the device must be synchronized.

        First waits for collectives that these steps have left in flight.
        """
        if not self._pending:
            return []
        self._world.settle()
        self._world.agree_on_timing()
        spans = {rank: self._world.recorders[rank].drain() for rank in self._world.ranks}
        own = {
            rank: [value for step in self._pending for value in self._values(step, rank, spans[rank])]
            for rank in self._world.ranks
        }
        if self._traces is not None:
            self._write_traces(self._traces, spans)
            own = {rank: [*values, *self._traces.report(rank)] for rank, values in own.items()}
        gathered, width = self._world.gather(own), len(_per_rank()) + 2
        if self._traces is not None:
            note = self._traces.agree([ranks[-REPORT:] for ranks in gathered])
            if note is not None and 0 in self._world.ranks:
                print(note, flush=True)
        rows = [
            self._row(step.shared, [ranks[i * width : (i + 1) * width] for ranks in gathered])
            for i, step in enumerate(self._pending)
        ]
        self._pending = []
        for rank in self._world.ranks:
            self._world.recorders[rank].restart()
        return rows

    def _write_traces(self, traces: TraceWriter, spans: Mapping[int, list[Span]]) -> None:
        for rank in self._world.ranks:
            seconds, found = self._world.recorders[rank].seconds, {}
            for step in self._pending:
                start, end = (seconds(timestamp) for timestamp in step.windows[rank])
                if rank in step.notes:
                    trace = step.notes[rank].resolve(start, end, seconds)
                    found[step.shared["step"]] = trace
            traces.add(rank, found)

    def _values(self, step: PendingStep, rank: int, spans: list[Span]) -> list[float]:
        """One rank's figures of a step, in the order of `_per_rank` (NaN without spans), followed by the
        bytes that wire bits count: in total and to other nodes."""
        seconds = self._world.recorders[rank].seconds
        start, end = (seconds(timestamp) for timestamp in step.windows[rank])
        figures = {
            "loss": step.losses[rank],
            "train_time_s": step.train_time_s,
            "step_time_s": end - start if step.simulated_s is None else step.simulated_s,
            "bytes_sent": float(step.sent[rank].total),
            **step.observed.get(rank, {}),
        }
        if self._world.recorders[rank].enabled and step.timed:
            figures |= rank_figures(step.spans.get(rank, spans), start, end)
        values = [figures.get(key, math.nan) for key in _per_rank()]
        return [*values, *map(float, step.sent[rank].encoded)]

    def _row(self, shared: dict[str, Any], ranks: list[list[float]]) -> dict[str, Any]:
        """The figures that differ between ranks, combined as `Metric.ranks` specifies, and the shared
        ones.
        """
        found: dict[str, Any] = of_ranks([dict(zip(_per_rank(), own[:-2], strict=True)) for own in ranks])
        row = {"step": shared["step"], **{key: found.pop(key) for key in FIRST}, **shared, **found}
        row["bytes_sent"] = int(row["bytes_sent"])
        encoded, between = (int(sum(column)) for column in zip(*(own[-2:] for own in ranks), strict=True))
        row["wire_bits_per_coordinate"] = wire_bits(encoded, self._gradients_sent, self._num_coordinates)
        if self._tokens is not None:
            row["tokens_per_s"] = self._tokens / row["step_time_s"] if row["step_time_s"] else None
        if self._has_nodes:
            row |= self._by_level(encoded, between)
        return row

    def _by_level(self, total: int, between: int) -> dict[str, float | None]:
        """The metrics of `LEVELS`; None if nothing is sent or counted."""
        bits = wire_bits_by_level(total, between, self._gradients_sent, self._num_coordinates)
        return dict(zip(LEVELS, bits.values(), strict=True)) if bits else dict.fromkeys(LEVELS)


def _per_rank() -> tuple[str, ...]:
    """The metrics of a step's row in which ranks differ."""
    return keys(lambda metric: metric.ranks is not None)
