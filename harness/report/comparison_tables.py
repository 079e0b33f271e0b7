"""Tables of compared runs: results, the time of a step and where it goes, bytes, what mechanisms did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradwire.harness.network.configured import common_text
from gradwire.harness.record.common_time import How
from gradwire.harness.record.summary import PERCENTILES, SPREAD
from gradwire.harness.report.group_rows import GroupRow, TargetRow
from gradwire.harness.report.tables import NOT_REACHED, Table, figure, figures_table, number
from gradwire.harness.timing.measure.metric import FULL_MILLISECONDS, Section, Spread
from gradwire.harness.timing.measure.metrics import METRICS, in_words, keys

Common = tuple[str, str, list[GroupRow]]
"""Clock, metric, and the rows that share them."""

ACTIVE = keys(lambda metric: metric.section == "activity")

CLOCK_MEANING = {
    "wall": "wall clock",
    "simulated": "simulated clock: computation calibrated, measured or given, network modelled",
}


def sections(rows: Sequence[GroupRow]) -> list[Common]:
    """Rows by clock and metric, so that no column mixes them; rows of failed runs are in the first
    section.
    """
    found: dict[tuple[str, str], list[GroupRow]] = {}
    for row in rows:
        if row.clock is not None and row.metric is not None:
            found.setdefault((row.clock, row.metric), []).append(row)
    failed = [row for row in rows if row.clock is None]
    result = [(clock, metric, members) for (clock, metric), members in found.items()]
    result[0][2].extend(failed)
    return result


def tables_of(section: Common, *, busy: bool = False, how: How | None = None) -> list[Table]:
    """All tables of one section; `busy` says that its times were disturbed, `how` tells how common step times
    were determined."""
    clock, _, rows = section
    result = [result_table(section), step_table(section)]
    result += [spread_table(section)] if any(map(_varies, rows)) else []
    if busy and clock == "wall":
        result.append(section_table("What the machine did meanwhile, per step", "machine", rows))
        if how is not None:
            result.insert(1, common_table(section, how))
    result += [overlap_table(section)] if any(row.figures["overlap_s"] for row in rows) else []
    result.append(bytes_table(section))
    result += [activity_table(section)] if any(row.figures[key] for row in rows for key in ACTIVE) else []
    return [*result, split_table(section)] if any(row.targets for row in rows) else result


def times_in_words(section: Common) -> str:
    """A section's times in words: its network (for several, their common description) and its clock."""
    clock, _, rows = section
    return f"{common_text(row.network for row in rows)}; {CLOCK_MEANING[clock]}"


def _heads(rows: Sequence[GroupRow]) -> list[str]:
    """The headings of the first columns, one of them the network where rows differ in it."""
    return ["run", "network"] if len({row.network for row in rows}) > 1 else ["run"]


def _table(
    title: str, section: Common, header: Sequence[str], lines: Iterable[tuple[GroupRow, Sequence[str]]]
) -> Table:
    """A table of a section: the figures of rows under `header`, behind their names."""
    rows = section[2]
    body = [[*_names(row, rows), *figures] for row, figures in lines]
    heads = _heads(rows)
    return Table(title, [*heads, *header], body, len(heads))


def _names(row: GroupRow, rows: Sequence[GroupRow]) -> list[str]:
    """The cells of these columns in one of `rows`."""
    return [row.label, row.network][: len(_heads(rows))]


def result_table(section: Common) -> Table:
    _, metric, rows = section
    factors = list(dict.fromkeys(target.factor for row in rows for target in row.targets))
    skips = any(skipped.high for row in rows if (skipped := row.figures["skipped_steps"]) is not None)
    header = ["seeds", f"final {in_words(metric)}", *(["steps skipped"] if skips else [])]
    header += [f"TTA [s] ×{factor:g}" for factor in factors]
    lines = []
    for row in rows:
        cells = {target.factor: time_to_target(row, target) for target in row.targets}
        final = figure(row.final_metric) if row.seeds else failure(row)
        skipped_steps = (
            [figure(row.figures["skipped_steps"], METRICS["skipped_steps"].shown)] if skips else []
        )
        tail = [cells.get(factor, "–") for factor in factors]
        lines.append((row, [seeds(row), final, *skipped_steps, *tail]))
    return _table(f"Result ({times_in_words(section)})", section, header, lines)


def section_table(title: str, which: Section, rows: Sequence[GroupRow], *more: str) -> Table:
    """The metrics of one section of METRICS and those in `more`, one column each."""
    lines = [(_names(row, rows), {**row.figures, "bytes_ratio": row.bytes_ratio}) for row in rows]
    heads = _heads(rows)
    table = figures_table(title, heads, lines, [*keys(lambda metric: metric.section == which), *more])
    return replace(table, names=len(heads))


def step_table(section: Common) -> Table:
    return section_table(f"Time of a step, and where it goes ({times_in_words(section)})", "step", section[2])


def spread_table(section: Common) -> Table:
    """The spread of the steps of a run, medians over seeds."""
    lines = [(row, [_between(row, key) for key in SPREAD]) for row in section[2]]
    title = f"Times of single steps, from the 10th to the 90th percentile ({times_in_words(section)})"
    return _table(title, section, [METRICS[key].heading for key in SPREAD], lines)


def _varies(row: GroupRow) -> bool:
    """Returns whether any step time varies; none does if all steps use one profile."""
    pairs = ([row.spread.get(f"{key}.{end}") for end in PERCENTILES] for key in SPREAD)
    return any(low and high and low.median < high.median for low, high in pairs)


def _between(row: GroupRow, key: str) -> str:
    low, high = (row.spread.get(f"{key}.{end}") for end in PERCENTILES)
    shown = METRICS[key].shown
    return "–" if low is None or high is None else f"{figure(low.median, shown)}–{figure(high.median, shown)}"


def common_table(section: Common, how: How) -> Table:
    """Medians of times with the computation time that the runs share, next to the measured ones."""
    _, _, rows = section
    factors = list(dict.fromkeys(target.factor for row in rows for target in row.targets))
    heads = [METRICS["step_time_s"].heading, *(f"TTA [s] ×{factor:g}" for factor in factors)]
    header = [column for head in heads for column in (head, f"{head}, common")]
    lines = []
    for row in rows:
        steps = [(row.figures.get(key), METRICS[key].shown) for key in ("step_time_s", "common_step_s")]
        cells = [figure(value and value.median, shown) for value, shown in steps]
        found = {target.factor: target for target in row.targets}
        for target in map(found.get, factors):
            times = (None, None) if target is None else (target.train_time_s, target.common_s)
            cells += ["–" if time is None else miss_or(Spread.of([time.median])) for time in times]
        lines.append((row, cells))
    measured = f"As measured on a busy machine ({times_in_words(section)})"
    return _table(f"{measured}, and with the common computation ({how})", section, header, lines)


def overlap_table(section: Common) -> Table:
    title = f"How well communication is hidden (AQGB; {times_in_words(section)})"
    return section_table(title, "overlap", section[2])


def bytes_table(section: Common) -> Table:
    title = f"Error and bytes ({times_in_words(section)}; MB = 10^6 bytes)"
    return section_table(title, "bytes", section[2], "bytes_ratio")


def activity_table(section: Common) -> Table:
    """The table of what codecs' mechanisms did, without columns that no codec has."""
    rows = section[2]
    known = [key for key in ACTIVE if any(row.figures[key] for row in rows)]
    lines = [(_names(row, rows), row.figures) for row in rows]
    heads = _heads(rows)
    table = figures_table("What the codecs' mechanisms did, means over steps", heads, lines, known)
    return replace(table, names=len(heads))


def split_table(section: Common) -> Table:
    """TTA = steps to target × time per step."""
    _, metric, rows = section
    header = [f"{in_words(metric)} target", "reached", "TTA [s]", "steps", "step [ms]", "stays", "p (faster)"]
    lines = [
        (
            row,
            [
                f"{number(target.target)} (×{target.factor:g})",
                f"{target.reached}/{row.num_seeds}",
                miss_or(target.train_time_s),
                miss_or(target.steps),
                figure(target.step_time_s, FULL_MILLISECONDS),
                {True: "yes", False: "no", None: "–"}[target.stays],
                number(target.p_faster, 3),
            ],
        )
        for row in rows
        for target in row.targets
    ]
    title = f"Time to accuracy = steps to target × time per step ({times_in_words(section)})"
    return _table(title, section, header, lines)


def time_to_target(row: GroupRow, target: TargetRow) -> str:
    """TTA with its range; how many seeds reached the target if not all did; a star if one of them fell back
    later."""
    partly = f" {target.reached}/{row.num_seeds}" if 0 < target.reached < row.num_seeds else ""
    return miss_or(target.train_time_s) + partly + ("*" if target.stays is False else "")


def miss_or(value: Spread) -> str:
    """A figure, unless the median seed missed the target."""
    return NOT_REACHED if math.isinf(value.median) else figure(value)


def seeds(row: GroupRow) -> str:
    """The number of seeds, and the number of those that failed or whose training diverged."""
    diverged = len(row.diverged_seeds)
    counts = {"failed": len(row.failed_seeds) - diverged, "diverged": diverged}
    words = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    return f"{row.num_seeds} ({words})" if words else str(row.num_seeds)


def failure(row: GroupRow) -> str:
    """The word for a figure that no seed has."""
    return "diverged" if row.diverged_seeds == row.failed_seeds else "failed"
