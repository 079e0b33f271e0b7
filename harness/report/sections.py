"""Which figures a comparison shows side by side: one set of tables for each clock and metric."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradwire.harness.report.rows import Row, Spread, TargetRow
from gradwire.harness.report.tables import Table, figure, number

Section = tuple[str, str, list[Row]]
"""Clock, metric and the rows they are common to."""

CLOCK_MEANING = {
    "wall": "wall clock",
    "simulated": "simulated clock: measured computation, modelled network",
}
NOT_REACHED = "not reached"


def sections(rows: Sequence[Row]) -> list[Section]:
    """Rows by clock and metric, so that no column mixes them; rows of failed runs come with the first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.clock is not None and row.metric is not None:
            found.setdefault((row.clock, row.metric), []).append(row)
    failed = [row for row in rows if row.clock is None]
    result = [(clock, metric, members) for (clock, metric), members in found.items()]
    result[0][2].extend(failed)
    return result


def tables_of(section: Section) -> list[Table]:
    """All tables of one section."""
    _, _, rows = section
    result = [result_table(section), step_table(section)]
    result += [overlap_table(section)] if any(row.overlap_s for row in rows) else []
    result.append(bytes_table(section))
    return [*result, split_table(section)] if any(row.targets for row in rows) else result


def result_table(section: Section) -> Table:
    clock, metric, rows = section
    factors = list(dict.fromkeys(target.factor for row in rows for target in row.targets))
    skips = any(row.skipped_steps is not None and row.skipped_steps.high for row in rows)
    header = ["run", "seeds", f"final {metric}", *(["steps skipped"] if skips else [])]
    header += [f"TTA [s] ×{factor:g}" for factor in factors]
    body = []
    for row in rows:
        cells = {target.factor: time_to_target(row, target) for target in row.targets}
        final = figure(row.final_metric) if row.seeds else failure(row)
        skipped = [figure(row.skipped_steps)] if skips else []
        tail = [cells.get(factor, "–") for factor in factors]
        body.append([row.label, seeds(row), final, *skipped, *tail])
    return Table(f"Result ({CLOCK_MEANING[clock]})", header, body)


def step_table(section: Section) -> Table:
    clock, _, rows = section
    header = ["run", "step [ms]", "compute [ms]", "compression [ms]", "exposed comm [ms]", "other [ms]"]
    header.append("steps/s")
    body = []
    for row in rows:
        parts = (row.step_time_s, row.compute_s, row.compression_s, row.exposed_comm_s, row.other_s)
        times = [figure(part, 1e3, digits=3) for part in parts]
        body.append([row.label, *times, figure(row.rounds_per_second, digits=3)])
    return Table(f"Time of a step, and where it goes ({CLOCK_MEANING[clock]})", header, body)


def overlap_table(section: Section) -> Table:
    clock, _, rows = section
    header = ["run", "computing while sending [ms]", "waiting for gradients [ms]", "ROW", "OSF"]
    header.append("link used [%]")
    body = [
        [
            row.label,
            figure(row.overlap_s, 1e3, digits=3),
            figure(row.wait_s, 1e3, digits=3),
            figure(row.row, digits=3),
            figure(row.osf, digits=3),
            figure(row.utilization, 100, digits=3),
        ]
        for row in rows
    ]
    return Table(f"How well communication is hidden (AQGB; {CLOCK_MEANING[clock]})", header, body)


def bytes_table(section: Section) -> Table:
    _, _, rows = section
    header = ["run", "vNMSE", "wire bits per coordinate", "MB sent per step and rank", "bytes, BF16 = 1"]
    body = [
        [
            row.label,
            figure(row.vnmse, digits=3),
            figure(row.wire_bits_per_coordinate),
            figure(row.bytes_per_step_per_rank, 1e-6),
            number(row.bytes_ratio),
        ]
        for row in rows
    ]
    return Table("Error and bytes (MB = 10^6 bytes)", header, body)


def split_table(section: Section) -> Table:
    """TTA = steps to target × time per step."""
    clock, metric, rows = section
    header = ["run", f"{metric} target", "reached", "TTA [s]", "steps", "step [ms]", "stays", "p (faster)"]
    body = [
        [
            row.label,
            f"{number(target.target)} (×{target.factor:g})",
            f"{target.reached}/{row.num_seeds}",
            miss_or(target.train_time_s),
            miss_or(target.steps),
            figure(target.step_time_s, 1e3),
            {True: "yes", False: "no", None: "–"}[target.stays],
            number(target.p_faster, 3),
        ]
        for row in rows
        for target in row.targets
    ]
    return Table(f"Time to accuracy = steps to target × time per step ({CLOCK_MEANING[clock]})", header, body)


def time_to_target(row: Row, target: TargetRow) -> str:
    """TTA with its range; how many seeds got there if not all; a star if one of them fell back later."""
    partly = f" {target.reached}/{row.num_seeds}" if 0 < target.reached < row.num_seeds else ""
    return miss_or(target.train_time_s) + partly + ("*" if target.stays is False else "")


def miss_or(value: Spread) -> str:
    """A figure, unless the median seed missed."""
    return NOT_REACHED if math.isinf(value.median) else figure(value)


def seeds(row: Row) -> str:
    """How many there are, and how many of them failed or, a failure of training itself, diverged."""
    diverged = len(row.diverged_seeds)
    counts = {"failed": len(row.failed_seeds) - diverged, "diverged": diverged}
    said = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    return f"{row.num_seeds} ({said})" if said else str(row.num_seeds)


def failure(row: Row) -> str:
    """What stands in place of a figure where no seed has one."""
    return "diverged" if row.diverged_seeds == row.failed_seeds else "failed"
