"""`task=plan`: a sweep's cells, whether they are done, and the predicted minutes of the others.

Minutes come from similar cells that have finished: runs with the cell's task, model, size, codec and
topology, and the same number of workers and steps on the same kind of cluster and network; the name of the
data does not matter. Runs on this machine come first, then the record of the same sweep in `results/`, then
all others there. Nothing is extrapolated: without such a run, minutes are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.sweeps.plan import Plan
from gradwire.harness.sweeps.predictions import Predictions

UNKNOWN = "unknown"

PlannedMinutes = tuple[bool, float | None]
"""True for a cell that is done; the minutes that another will take, None if not known."""


def run(config: Configuration) -> int:
    """Refuses to run, because only a sweep has a plan; `front` passes `task=plan` with a sweep to the
    sweeper."""
    raise ConfigError(
        "task=plan is about a sweep; add sweeps=<name>, or --multirun with several values, e.g. "
        f"{program()} task=plan sweeps=demo size=tiny"
    )


def plan_page(plan: Plan) -> str:
    """The runs of the sweep and of those that it needs, with a line for each cell in starting order; nothing
    is started."""
    predictions = Predictions(plan)
    lines: list[str] = []
    sources: dict[str, int] = {}
    whole: list[PlannedMinutes] = []
    for each in plan.with_needs:
        own: list[PlannedMinutes] = []
        table: list[str] = []
        for cell in tracked(each.by_turns, f"{each.name}: predicting", "cell"):
            found = None if cell.done else predictions.of(cell)
            if found is not None:
                sources[found.source] = sources.get(found.source, 0) + 1
            state, length = "done", ""
            if not cell.done:
                state = "to run" if cell.directory is not None else "needs others"
                length = UNKNOWN if found is None else f"{found.minutes:.1f} min"
            table.append(f"  {state:<14} {length:>11}  {cell.label}")
            own.append((cell.done, None if found is None else found.minutes))
        lines += [f"sweep {each.name}: {_total(own)}", *table]
        whole += own
    if len(plan.with_needs) > 1:
        lines.append(f"in all: {_total(whole)}")
    if sources:
        counted = "; ".join(f"{source} ({count})" for source, count in sources.items())
        lines.append(f"minutes are those of cells alike, whatever their data: {counted}")
    return "\n".join(lines)


def _total(cells: Sequence[PlannedMinutes]) -> str:
    """The number of cells that are done and of those still to run, and the minutes known of these."""
    left = [minutes for done, minutes in cells if not done]
    known = [minutes for minutes in left if minutes is not None]
    parts = [f"{sum(known):.1f} minutes predicted"] if known else []
    parts += [f"{len(left) - len(known)} of unknown length"] if len(known) < len(left) else []
    rest = f": {' and '.join(parts)}" if left else ""
    return f"{len(cells)} runs, {len(cells) - len(left)} done, {len(left)} to run{rest}"
