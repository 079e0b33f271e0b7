"""Figures computed from the rows of a simulated training: rounds, waits, overlap, ratios, utilization of
links.

A round is complete for a worker when its backward pass has reached the first block, and complete when it is
so for all workers. Waits and overlap are averaged over complete rounds except the first, which does not wait.
All other workers receive a worker's broadcast, so every worker is communicating whenever any message is in
flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from gradwire.harness.network.configured import make_links, network_text
from gradwire.harness.network.links import Change, Links
from gradwire.harness.network.settings import SimulatedConfig
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.simulate.model import blocks_of
from gradwire.harness.studies.simulate.study import SimulateSummary, SimulateTask
from gradwire.harness.timing.measure.step_figures import row_of
from gradwire.harness.timing.simulate.rounds import BACKWARD, FORWARD, STAGE_ONE, STAGE_TWO, RoundRows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
FULL_BITS = 32

SETTLING = 3
"""Rounds after a change of rates that are excluded from the average ratio."""

NEAR = 0.1
"""The relative distance from its final value within which a ratio counts as settled after a change."""


@dataclass(frozen=True)
class RoundFigures:
    """Figures of complete rounds, one element per round, including the first."""

    end_s: Floats  # when the last worker's backward pass ended
    wait_s: Floats  # of the worker that waits longest
    mean_wait_s: Floats
    overlap_s: Floats  # of the worker with the least
    osf: Floats  # of the worker with the least
    compute_s: Floats  # mean over workers


@dataclass(frozen=True)
class Ratios:
    """Bits sent per value over 32, for all workers, by synchronized round."""

    first: Floats  # after stage one
    final: Floats
    least_bits: int | None  # of any value in stage one; None if nothing was sent
    rate_mbit: Floats  # that senders expected, their mean; NaN where none knew


def round_figures(rows: RoundRows, seconds: float, workers: int) -> RoundFigures:
    """The figures of the complete rounds."""
    order = np.argsort(rows.worker, kind="stable")
    computed = order[np.isin(rows.kinds[order], (FORWARD, BACKWARD))]
    computed = computed[~np.isnan(rows.end[computed])]
    worker, number = rows.worker[computed], rows.round[computed]
    start, end = rows.start[computed], rows.end[computed]
    last = (rows.kinds[computed] == BACKWARD) & (rows.block[computed] == 0)
    rounds = int(np.bincount(worker[last], minlength=workers).min())
    ends = _by_round(rounds, workers, number[last], worker[last], end[last])
    if not rounds:
        nothing = np.zeros(0)
        return RoundFigures(*(nothing,) * 6)
    before = np.roll(end, 1)
    before[np.concatenate([[True], worker[1:] != worker[:-1]])] = 0.0
    under_way = busy(rows, seconds)
    began = np.vstack([np.zeros(workers), ends[:-1]])
    inside = number < rounds
    number, worker = number[inside], worker[inside]
    start, end, before = start[inside], end[inside], before[inside]
    compute = _by_round(rounds, workers, number, worker, end - start)
    wait = _by_round(rounds, workers, number, worker, start - before)
    overlap = _by_round(rounds, workers, number, worker, covered(under_way, end) - covered(under_way, start))
    # T_update: from the first to the last moment of a worker's round in which a message is in flight.
    first, final = _first_and_last(under_way, began, ends)
    clipped = np.minimum(start, final[number, worker]) - np.maximum(before, first[number, worker])
    waited = _by_round(rounds, workers, number, worker, np.maximum(clipped, 0.0))
    return RoundFigures(
        end_s=ends.max(axis=1),
        wait_s=wait.max(axis=1),
        mean_wait_s=wait.mean(axis=1),
        overlap_s=overlap.min(axis=1),
        osf=(compute / (compute + waited)).min(axis=1),
        compute_s=compute.mean(axis=1),
    )


def _by_round(rounds: int, workers: int, number: Integers, worker: Integers, values: Floats) -> Floats:
    """Sums, (rounds, workers); values of later rounds are ignored."""
    found, inside = np.zeros((rounds, workers)), number < rounds
    np.add.at(found, (number[inside], worker[inside]), values[inside])
    return found


def sent_rows(rows: RoundRows) -> NDArray[np.bool_]:
    """A mask of the rows about messages."""
    return np.isin(rows.kinds, (STAGE_ONE, STAGE_TWO))


def busy(rows: RoundRows, seconds: float) -> Floats:
    """The intervals in which messages are in flight: (intervals, 2), sorted and disjoint, cut to
    `seconds`.
    """
    sent = sent_rows(rows)
    start = rows.start[sent]
    end = np.where(np.isnan(rows.end[sent]), seconds, rows.end[sent])
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if order.size else end
    if not start.size:
        return np.zeros((0, 2))
    begins = np.concatenate([[True], start[1:] > end[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([start[begins], end[ends]], axis=1)


def covered(intervals: Floats, at: Floats) -> Floats:
    """Seconds of `intervals` before each moment."""
    if not len(intervals):
        return np.zeros_like(at)
    lengths = np.concatenate([[0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    index = np.searchsorted(intervals[:, 0], at, side="right") - 1
    inside = np.minimum(at, intervals[index, 1]) - intervals[index, 0]
    return np.where(index < 0, 0.0, lengths[np.maximum(index, 0)] + inside)


def _first_and_last(intervals: Floats, began: Floats, ended: Floats) -> tuple[Floats, Floats]:
    """The first and the last covered moment of each [began, ended]; an empty interval if there is none."""
    if not len(intervals):
        return ended, ended
    after = np.searchsorted(intervals[:, 1], began, side="right")
    first = np.where(
        after < len(intervals),
        np.maximum(intervals[np.minimum(after, len(intervals) - 1), 0], began),
        ended,
    )
    before = np.searchsorted(intervals[:, 0], ended, side="left") - 1
    last = np.where(before >= 0, np.minimum(intervals[np.maximum(before, 0), 1], ended), began)
    return np.minimum(first, ended), last


def ratios(rows: RoundRows, coordinates: int, workers: int, rounds: int) -> Ratios:
    """The ratios of the rounds whose gradients all workers have received, i.e. of all complete rounds but the
    last."""
    count = max(0, rounds - 1)
    bits = np.zeros((2, count))
    known, expected = np.zeros(count), np.zeros(count)
    first = rows.kinds == STAGE_ONE
    for stage, kind in enumerate((STAGE_ONE, STAGE_TWO)):
        sent = (rows.kinds == kind) & (rows.round < count)
        np.add.at(bits[stage], rows.round[sent], (rows.values_sent * rows.bits_sent)[sent].astype(float))
    knows = first & (rows.round < count) & ~np.isnan(rows.rate)
    np.add.at(known, rows.round[knows], 1.0)
    np.add.at(expected, rows.round[knows], rows.rate[knows] / 1e6)
    full = float(FULL_BITS * coordinates * workers)
    with np.errstate(invalid="ignore"):
        rate = expected / known
    carried = first & (rows.values_sent > 0)
    least = int(rows.bits_sent[carried].min()) if carried.any() else None
    return Ratios(bits[0] / full, bits.sum(axis=0) / full, least, rate)


def utilization(rows: RoundRows, links: Links, workers: int, copies: int, seconds: float) -> float | None:
    """The received bytes relative to the capacity of the workers' links in `seconds`; None if nothing was
    received."""
    sent = sent_rows(rows)
    if not copies or not sent.any():
        return None
    received = float(rows.bytes[sent].sum()) * (workers - 1) / copies
    return received / (workers * links.rates[-1] * _weighted(links.changes, seconds))


def _weighted(changes: Sequence[Change], seconds: float) -> float:
    """The integral of the rates' factor over `seconds`."""
    total, at, factor = 0.0, 0.0, 1.0
    for change in changes:
        if change.at_s < seconds:
            total, at, factor = total + factor * (change.at_s - at), change.at_s, change.factor
    return total + factor * (seconds - at)


@dataclass(frozen=True)
class Phase:
    """The rounds between two changes of rates."""

    from_s: float
    factor: float  # of the rates
    rounds: int  # whose backward pass ended meanwhile
    q_ratio_first: float | None  # mean of those but the first 3; null if there are none
    q_ratio: float | None
    followed_after: int | None  # rounds until the first stage's ratio was within a tenth of that mean


def phases(changes: Sequence[Change], found: RoundFigures, ratio: Ratios, seconds: float) -> list[Phase]:
    """The ratios for each rate, including the initial one."""
    at = [Change(0.0, 1.0), *(change for change in changes if 0 < change.at_s < seconds)]
    if changes and changes[0].at_s == 0:
        at[0] = changes[0]
    ends = [change.at_s for change in at[1:]] + [math.inf]
    return [_phase(change, end, found, ratio) for change, end in zip(at, ends, strict=True)]


def _phase(change: Change, end: float, found: RoundFigures, ratio: Ratios) -> Phase:
    within = [at for at in range(len(ratio.first)) if change.at_s <= found.end_s[at] < end]
    settled = within[SETTLING:]
    if not settled:
        return Phase(change.at_s, change.factor, len(within), None, None, None)
    first, final = (float(values[settled].mean()) for values in (ratio.first, ratio.final))
    followed = [after for after, at in enumerate(within) if abs(ratio.first[at] - first) <= NEAR * first]
    return Phase(change.at_s, change.factor, len(within), first, final, followed[0] if followed else None)


def row(found: RoundFigures) -> float | None:
    """ROW of the group (equation 2), from the rounds' means; None for fewer than two rounds."""
    if len(found.wait_s) < 2:
        return None
    return row_of(float(found.overlap_s[1:].mean()), float(found.wait_s[1:].mean()))


def summarize(config: SimulateTask, rows: RoundRows) -> SimulateSummary:
    """The summary for a resolved configuration's rows."""
    given, network, size = config.simulate, config.network, config.cluster.size
    assert isinstance(network, SimulatedConfig)
    blocks, links = blocks_of(config), make_links(network, size)
    found = round_figures(rows, given.seconds, size)
    rounds, coordinates = len(found.end_s), sum(block.parameters for block in blocks)
    silent = given.scheme == "ideal"
    copies = 0 if silent else 1 if network.multicast else size - 1
    ratio = ratios(rows, coordinates, size, rounds)
    compute_s = _mean(found.compute_s)
    wait_s = _mean(found.mean_wait_s[1:])
    return SimulateSummary(
        scheme=given.scheme,
        bits=given.bits,
        floor=given.floor,
        workers=size,
        blocks=[list(block) for block in blocks],
        split=given.split,
        seconds=given.seconds,
        network=network_text(network, "modelled"),
        network_settings=asdict(network),
        rate_mbit=network.rate_mbit,
        rounds=rounds,
        utilization=utilization(rows, links, size, copies, given.seconds),
        t_wait=None if wait_s is None or not compute_s else wait_s / compute_s,
        wait_s=_mean(found.wait_s[1:]),
        overlap_s=_mean(found.overlap_s[1:]),
        row=row(found),
        osf=_mean(found.osf[1:]),
        compute_s=compute_s,
        round_s=float(found.end_s[-1] - found.end_s[0]) / (rounds - 1) if rounds > 1 else None,
        q_ratio_first=None if silent else _mean(ratio.first),
        q_ratio=None if silent else _mean(ratio.final),
        least_bits=ratio.least_bits,
        bytes_sent=float(rows.bytes[sent_rows(rows)].sum()),
        phases=[] if silent else [asdict(one) for one in phases(links.changes, found, ratio, given.seconds)],
        series=_series(found, None if silent else ratio),
        seed=config.seed,
        provenance=provenance(config.mapping()),
    )


def _series(found: RoundFigures, ratio: Ratios | None) -> dict[str, list[float | None]]:
    """Figures by round; the last round has no ratio, because its gradients are still in flight."""
    series = {"end_s": found.end_s, "wait_s": found.wait_s, "overlap_s": found.overlap_s}
    if ratio is not None:
        series |= {
            "q_ratio_first": ratio.first,
            "q_ratio": ratio.final,
            "rate_mbit": ratio.rate_mbit,
        }
    return {name: list(_written(values)) for name, values in series.items()}


def _written(values: Floats) -> Iterable[float | None]:
    return (None if math.isnan(value) else round(float(value), 9) for value in values)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
