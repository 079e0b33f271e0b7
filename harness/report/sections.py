"""Which figures a comparison shows side by side: one set of tables for each clock and metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gradwire.harness.network.configured import common_text
from gradwire.harness.record.common_time import How
from gradwire.harness.record.summary import PERCENTILES, SPREAD
from gradwire.harness.report.group_rows import Row, TargetRow
from gradwire.harness.report.tables import Table, figure, figures_table, number
from gradwire.harness.timing.measure.metric import FULL_MILLISECONDS, Section, Spread
from gradwire.harness.timing.measure.metrics import METRICS, in_words, keys

Common = tuple[str, str, list[Row]]
"""Clock, metric and the rows they are common to."""

CLOCK_MEANING = {
    "wall": "wall clock",
    "simulated": "simulated clock: measured or set computation, modelled network",
}
NOT_REACHED = "not reached"


def sections(rows: Sequence[Row]) -> list[Common]:
    """Rows by clock and metric, so that no column mixes them; rows of failed runs come with the first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.clock is not None and row.metric is not None:
            found.setdefault((row.clock, row.metric), []).append(row)
    failed = [row for row in rows if row.clock is None]
    result = [(clock, metric, members) for (clock, metric), members in found.items()]
    result[0][2].extend(failed)
    return result


def tables_of(section: Common, *, busy: bool = False, how: How | None = None) -> list[Table]:
    """All tables of one section; `busy` says that its times have been disturbed, `how` the common
    computation's came about."""
    clock, _, rows = section
    result = [result_table(section), step_table(section)]
    result += [spread_table(section)] if any(row.spread for row in rows) else []
    if busy and clock == "wall":
        result.append(section_table("What the machine did meanwhile, per step", "machine", rows))
        if how is not None:
            result.insert(1, common_table(section, how))
    result += [overlap_table(section)] if any(row.figures["overlap_s"] for row in rows) else []
    result.append(bytes_table(section))
    return [*result, split_table(section)] if any(row.targets for row in rows) else result


def said_of(section: Common) -> str:
    """What the times of a section are: its network, of several what they have in common; and its clock."""
    clock, _, rows = section
    return f"{common_text(row.network for row in rows)}; {CLOCK_MEANING[clock]}"


def _heads(rows: Sequence[Row]) -> list[str]:
    """What the first columns are called: where rows differ in their network, one says it."""
    return ["run", "network"] if len({row.network for row in rows}) > 1 else ["run"]


def _names(row: Row, rows: Sequence[Row]) -> list[str]:
    """The cells of these columns in one of `rows`."""
    return [row.label, row.network][: len(_heads(rows))]


def result_table(section: Common) -> Table:
    _, metric, rows = section
    factors = list(dict.fromkeys(target.factor for row in rows for target in row.targets))
    skips = any(skipped.high for row in rows if (skipped := row.figures["skipped_steps"]) is not None)
    header = [*_heads(rows), "seeds", f"final {in_words(metric)}", *(["steps skipped"] if skips else [])]
    header += [f"TTA [s] ×{factor:g}" for factor in factors]
    body = []
    for row in rows:
        cells = {target.factor: time_to_target(row, target) for target in row.targets}
        final = figure(row.final_metric) if row.seeds else failure(row)
        skipped_steps = (
            [figure(row.figures["skipped_steps"], METRICS["skipped_steps"].shown)] if skips else []
        )
        tail = [cells.get(factor, "–") for factor in factors]
        body.append([*_names(row, rows), seeds(row), final, *skipped_steps, *tail])
    return Table(f"Result ({said_of(section)})", header, body, len(_heads(rows)))


def section_table(title: str, which: Section, rows: Sequence[Row], *more: str) -> Table:
    """The metrics of one section of METRICS and those of `more`, a column each."""
    lines = [(_names(row, rows), {**row.figures, "bytes_ratio": row.bytes_ratio}) for row in rows]
    heads = _heads(rows)
    table = figures_table(title, heads, lines, [*keys(lambda metric: metric.section == which), *more])
    return replace(table, names=len(heads))


def step_table(section: Common) -> Table:
    return section_table(f"Time of a step, and where it goes ({said_of(section)})", "step", section[2])


def spread_table(section: Common) -> Table:
    """How far the steps of a run lie apart, medians over seeds."""
    _, _, rows = section
    header = [*_heads(rows), *(METRICS[key].heading for key in SPREAD)]
    body = [[*_names(row, rows), *(_between(row, key) for key in SPREAD)] for row in rows]
    title = f"Times of single steps, from the 10th to the 90th percentile ({said_of(section)})"
    return Table(title, header, body, len(_heads(rows)))


def _between(row: Row, key: str) -> str:
    low, high = (row.spread.get(f"{key}.{end}") for end in PERCENTILES)
    shown = METRICS[key].shown
    return "–" if low is None or high is None else f"{figure(low.median, shown)}–{figure(high.median, shown)}"


def common_table(section: Common, how: How) -> Table:
    """Medians of times with the computation that the runs share, beside the measured ones."""
    _, _, rows = section
    factors = list(dict.fromkeys(target.factor for row in rows for target in row.targets))
    header = [*_heads(rows), METRICS["step_time_s"].heading, "common"]
    header += [column for factor in factors for column in (f"TTA [s] ×{factor:g}", "common")]
    body = []
    for row in rows:
        steps = [(row.figures.get(key), METRICS[key].shown) for key in ("step_time_s", "common_step_s")]
        cells = [figure(value and value.median, shown) for value, shown in steps]
        found = {target.factor: target for target in row.targets}
        for target in map(found.get, factors):
            times = (None, None) if target is None else (target.train_time_s, target.common_s)
            cells += ["–" if time is None else miss_or(Spread.of([time.median])) for time in times]
        body.append([*_names(row, rows), *cells])
    title = f"As measured on a busy machine, and with the common computation ({how}; {said_of(section)})"
    return Table(title, header, body, len(_heads(rows)))


def overlap_table(section: Common) -> Table:
    title = f"How well communication is hidden (AQGB; {said_of(section)})"
    return section_table(title, "overlap", section[2])


def bytes_table(section: Common) -> Table:
    title = f"Error and bytes ({said_of(section)}; MB = 10^6 bytes)"
    return section_table(title, "bytes", section[2], "bytes_ratio")


def split_table(section: Common) -> Table:
    """TTA = steps to target × time per step."""
    _, metric, rows = section
    header = [
        *_heads(rows),
        f"{in_words(metric)} target",
        "reached",
        "TTA [s]",
        "steps",
        "step [ms]",
        "stays",
        "p (faster)",
    ]
    body = [
        [
            *_names(row, rows),
            f"{number(fared.target)} (×{fared.factor:g})",
            f"{fared.reached}/{row.num_seeds}",
            miss_or(fared.train_time_s),
            miss_or(fared.steps),
            figure(fared.step_time_s, FULL_MILLISECONDS),
            {True: "yes", False: "no", None: "–"}[fared.stays],
            number(fared.p_faster, 3),
        ]
        for row in rows
        for fared in row.targets
    ]
    title = f"Time to accuracy = steps to target × time per step ({said_of(section)})"
    return Table(title, header, body, len(_heads(rows)))


def time_to_target(row: Row, target: TargetRow) -> str:
    """TTA with its range; how many seeds got there if not all; a star if one of them fell back later."""
    partly = f" {target.reached}/{row.num_seeds}" if 0 < target.reached < row.num_seeds else ""
    return miss_or(target.train_time_s) + partly + ("*" if target.stays is False else "")


def miss_or(value: Spread) -> str:
    """A figure, unless the median seed missed the target."""
    return NOT_REACHED if math.isinf(value.median) else figure(value)


def seeds(row: Row) -> str:
    """How many there are, and how many of them failed or, a failure of training itself, diverged."""
    diverged = len(row.diverged_seeds)
    counts = {"failed": len(row.failed_seeds) - diverged, "diverged": diverged}
    said = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    return f"{row.num_seeds} ({said})" if said else str(row.num_seeds)


def failure(row: Row) -> str:
    """What is shown instead of a figure that no seed has."""
    return "diverged" if row.diverged_seeds == row.failed_seeds else "failed"
