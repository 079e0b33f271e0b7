"""`task=plan`: a sweep's cells, which are done, and the minutes that the others are predicted to take."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.sweeps.plan import Plan
from gradwire.harness.sweeps.planned_cell import PlannedCell
from gradwire.harness.sweeps.predictions import Predictions

UNKNOWN = "unknown"


@dataclass
class _Total:
    """Cells that are still to run, the minutes known of them, and the number of those not known."""

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
    """The runs of the sweep and of those that it needs, a line for each cell in the order in which they
    start; nothing is started."""
    predictions, whole = Predictions(plan), _Total()
    lines: list[str] = []
    sources: dict[str, int] = {}
    for each in plan.with_needs:
        total = _Total()
        own = []
        for cell in tracked(each.by_turns, f"{each.name}: predicting", "cell"):
            found = None if cell.done else predictions.of(cell)
            minutes = None if found is None else found.minutes
            if found is not None:
                sources[found.source] = sources.get(found.source, 0) + 1
            state = "to run" if cell.directory is not None else "needs others"
            length = UNKNOWN if minutes is None else f"{minutes:.1f} min"
            own.append(("done", "", cell.label) if cell.done else (state, length, cell.label))
            total.add(cell, minutes)
            whole.add(cell, minutes)
        lines += [f"sweep {each.name}: {total}"]
        lines += [f"  {state:<14} {minutes:>11}  {label}" for state, minutes, label in own]
    if len(plan.with_needs) > 1:
        lines.append(f"in all: {whole}")
    if sources:
        counted = "; ".join(f"{source} ({count})" for source, count in sources.items())
        lines.append(f"minutes are those of cells alike, whatever their data: {counted}")
    return "\n".join(lines)
