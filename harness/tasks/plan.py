"""`task=plan`: a sweep's cells, which of them are done, and the minutes that the others are predicted to
take."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.tasks.plan_minutes import Predictions
from gradwire.harness.tasks.planned_cell import PlannedCell
from gradwire.harness.tasks.sweep_plan import Plan

UNKNOWN = "unknown"


@dataclass
class _Total:
    """Cells that are still to run, the minutes known of them, and how many nobody knows."""

    cells: int = 0
    done: int = 0
    left: int = 0
    minutes: float = 0.0
    unknown: int = 0

    def add(self, cell: PlannedCell, minutes: float | None) -> None:
        self.cells += 1
        if cell.done:
            self.done += 1
        else:
            self.left += 1
            self.minutes += minutes or 0.0
            self.unknown += minutes is None

    def __str__(self) -> str:
        known = f"{self.minutes:.1f} minutes predicted" if self.left > self.unknown else ""
        unknown = f"{self.unknown} of unknown length" if self.unknown else ""
        rest = f": {' and '.join(filter(None, (known, unknown)))}" if self.left else ""
        return f"{self.cells} runs, {self.done} done, {self.left} to run{rest}"


def run(config: Configuration) -> int:
    """Only a sweep has a plan; `front` hands `task=plan` with a sweep to the sweeper."""
    raise ConfigError(
        "task=plan is about a sweep; add sweeps=<name>, or --multirun with several values, e.g. "
        f"{program()} task=plan sweeps=demo size=tiny"
    )


def plan_page(plan: Plan) -> str:
    """What the sweep and those that it needs would run, a line for each cell in the order in which they
    start; nothing is started."""
    predictions, whole = Predictions(plan), _Total()
    lines: list[str] = []
    sources: dict[str, int] = {}
    for each in plan.with_needs:
        total = _Total()
        own = []
        for cell in tracked(each.by_turns, f"{each.name}: predicting", "cell"):
            found = None if cell.done else predictions.predicted(cell)
            minutes = None if found is None else found.minutes
            if found is not None:
                sources[found.source] = sources.get(found.source, 0) + 1
            own.append((_state(cell), _minutes(cell, minutes), cell.cell.label))
            total.add(cell, minutes)
            whole.add(cell, minutes)
        lines += [f"sweep {each.name}: {total}"]
        lines += [f"  {state:<14} {minutes:>11}  {label}" for state, minutes, label in own]
    if len(plan.with_needs) > 1:
        lines.append(f"in all: {whole}")
    if sources:
        said = "; ".join(f"{source} ({count})" for source, count in sources.items())
        lines.append(f"minutes are those of cells alike, whatever their data: {said}")
    return "\n".join(lines)


def _state(cell: PlannedCell) -> str:
    if cell.done:
        return "done"
    return "to run" if cell.directory is not None else "needs others"


def _minutes(cell: PlannedCell, minutes: float | None) -> str:
    if cell.done:
        return ""
    return UNKNOWN if minutes is None else f"{minutes:.1f} min"
