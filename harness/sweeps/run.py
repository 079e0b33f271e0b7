"""Running a sweep: first what it needs, then its unfinished cells; then the finished ones are compared.

Nothing starts before every cell has been composed and validated. A cell whose run directory is done
is skipped, so that the same command resumes an interrupted sweep; a failed cell does not stop it.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.utils import JobReturn

from gradwire.harness.checkpoint.folder import checkpoints
from gradwire.harness.config.resources import check_disk_of_sweep
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.launch.cell_process import CellOutcome, CellProcess
from gradwire.harness.launch.processes import is_expected
from gradwire.harness.network.settings import SHARED, ShapedConfig
from gradwire.harness.record.directory import PROFILES
from gradwire.harness.record.profiles import CodecWork, Computation, offer, own_profile
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.report.tables import Page
from gradwire.harness.runtime.errors import ConfigError, one_line
from gradwire.harness.runtime.output import declare_run
from gradwire.harness.studies.once import show_finished
from gradwire.harness.sweeps.plan import Plan, settled, sweep_axes
from gradwire.harness.sweeps.planned_cell import PlannedCell
from gradwire.harness.sweeps.predictions import Budget, Eta, Predictions
from gradwire.harness.sweeps.record import SweptCell, SweptCells, write_sweep_record
from gradwire.harness.trainer.calibration import request_profile
from gradwire.harness.trainer.settings import RunConfig

Launch = Callable[[list[list[str]], int], Sequence[JobReturn]]
"""Hydra's launcher: takes the overrides of some cells and the index of the first; returns their results."""

STOPPED = 75
"""The exit code of a sweep stopped by `sweep.minutes`: EX_TEMPFAIL of sysexits.h, "try again later"."""

NOT_KNOWN_YET = Path("not-known-yet")
"""A placeholder in a record for the directory of a cell that waits for a needed one."""


@dataclass
class SweepOutcome:
    """The outcome of a sweep's cells, those of the sweeps that it needs included."""

    failed: list[PlannedCell] = field(default_factory=list)
    left: list[PlannedCell] = field(default_factory=list)
    """Cells that the budget did not allow to start, and cells that wait for them."""

    @property
    def code(self) -> int:
        """The exit code of the sweep."""
        return STOPPED if self.left else int(bool(self.failed))


class Launching:
    """Starts cells, by Hydra's launcher or in a process shared by all cells without workers."""

    def __init__(self, launch: Launch, *, sequential: bool, cells: CellProcess) -> None:
        self._launch, self._sequential, self._cells = launch, sequential, cells
        self._number = 0

    @property
    def at_once(self) -> bool:
        """True if the launcher runs all cells at the same time."""
        return not self._sequential

    def run(self, cells: Sequence[PlannedCell], sweep: str) -> list[bool]:
        """Runs cells; returns for each if it has succeeded."""
        if self._sequential and not any(cell.starts_workers for cell in cells):
            return [self._here(cell, sweep) for cell in cells]
        results = self._launch([cell.launch_overrides(sweep) for cell in cells], self._number)
        self._number += len(cells)
        return list(map(_succeeded, results))

    def _here(self, cell: PlannedCell, sweep: str) -> bool:
        assert cell.directory is not None
        ended = self._cells.run(cell.tracked_in(sweep), cell.directory)
        if ended.traceback:
            print(ended.traceback, file=sys.stderr, end="", flush=True)
        elif ended.error:
            print(f"error: {ended.error}", flush=True)
        return ended.code == 0


def run_cell(config: RecordedConfig, directory: Path) -> CellOutcome:
    """Runs a cell in this process, which other cells share; errors that say everything in one line."""
    try:
        return CellOutcome(TASKS[config.task.name].run(config, directory))
    except Exception as error:
        if not is_expected(error):
            raise
        return CellOutcome(1, one_line(error))


def check_launcher_can(plan: Plan, launcher: str) -> None:
    """Raises ConfigError for cells whose workers the launcher's processes cannot start."""
    if launcher != "joblib":
        return
    for each in plan.with_needs:
        for cell in each.cells:
            if cell.starts_workers:
                raise ConfigError(
                    f"hydra/launcher=joblib cannot start the workers of {cell.label}; use "
                    "cluster=virtual, or hydra/launcher=submitit_local"
                )


def run_sweep(plan: Plan, launch: Launch, *, sequential: bool) -> int:
    """Runs a sweep and those that it needs; returns the exit code.

    A launcher that is not `sequential` gets all cells of a sweep at once.
    """
    minutes = plan.settings.minutes
    if minutes is not None and not sequential:
        raise ConfigError(
            f"sweep.minutes={minutes:g} has no effect with a launcher that starts all cells at once; use the "
            "launcher's own limit, hydra.launcher.timeout_min"
        )
    planned = [cell for each in plan.with_needs for cell in each.of_task("train") if not cell.done]
    runs = [(cell.config, cell.directory) for cell in planned]
    tight = check_disk_of_sweep(
        [(run, folder) for run, folder in runs if isinstance(run, RunConfig) and folder is not None]
    )
    if tight is not None:
        print(tight, file=sys.stderr, flush=True)
    outcome = SweepOutcome()
    declare_run()
    for each in plan.with_needs:
        if each.note:
            print(each.note, flush=True)
    with ExitStack() as stack:
        cells = stack.enter_context(CellProcess(run_cell))
        launching = Launching(launch, sequential=sequential, cells=cells)
        budget = Budget(minutes, Predictions(plan).minutes)
        for each in plan.with_needs:
            _carry_out(settled(each), launching, budget, outcome)
    for cell in outcome.failed:
        print(f"failed: {cell.label} ({cell.directory or 'a cell that it needs did not finish'})")
    if outcome.left:
        assert minutes is not None
        print(
            f"stopped after sweep.minutes={minutes:g}: {len(outcome.left)} runs are left; the same command "
            f"continues with them (exit code {STOPPED})"
        )
    print(f"sweep: {plan.output}")
    return outcome.code


def _carry_out(plan: Plan, launching: Launching, budget: Budget, outcome: SweepOutcome) -> None:
    """Runs the unfinished cells of one plan and compares them; updates the outcome."""
    waiting = [cell for cell in plan.by_turns if not cell.done]
    print(
        f"sweep {plan.name}: {len(plan.cells)} runs, {len(plan.cells) - len(waiting)} of them finished before"
    )
    able = [cell for cell in waiting if cell.directory is not None]
    share_profiles(plan)
    stopped = bool(outcome.left)
    (outcome.left if stopped else outcome.failed).extend(cell for cell in waiting if cell.directory is None)
    batch = len(able) if launching.at_once else 1
    # Searching for similar cells takes seconds, so it is only done here if the budget needs it anyway.
    eta = Eta(budget.predicted if budget.minutes is not None else lambda cell: None)
    for first in range(0, len(able), batch or 1):
        cells = able[first : first + batch]
        if stopped or not all(map(budget.allows, cells)):
            stopped = True
            outcome.left += cells
            continue
        for index, cell in enumerate(cells, first + 1):
            left = eta.left(able[first:])
            print(f"[{index}/{len(able)}{left}] {cell.label} -> {cell.directory}", flush=True)
        succeeded = launching.run(cells, plan.name)
        eta.ran(cells)
        outcome.failed += [cell for cell, well in zip(cells, succeeded, strict=True) if not well]
    finish_sweep(plan)


def finish_sweep(plan: Plan) -> None:
    """Compares the sweep's runs, separately for each task, and writes the sweep's record.

    Tables, which are also printed, and plots go to the sweep's folder; where it mixes tasks, to a folder in
    it for each.
    """
    tasks = plan.tasks
    for task in tasks:
        output = plan.output if len(tasks) == 1 else plan.output / task
        _compare(plan, task, output)
    texts = list(dict.fromkeys(cell.text for cell in plan.cells if cell.text is not None))
    swept = SweptCells(
        plan.sweep,
        plan.size,
        plan.command,
        plan.axes,
        [
            SweptCell(cell.label, cell.directory or NOT_KNOWN_YET, cell.config.mapping(), cell.needed)
            for cell in plan.cells
        ],
        folder=plan.name,
        paper=plan.settings.paper,
        text=", ".join(texts) or None,
        overrides=plan.overrides,
    )
    write_sweep_record(plan.output, swept)
    show_finished(plan.cells[0].config, plan.output)


def compare_runs(task: str, folders: Sequence[Path], output: Path, axes: Sequence[str]) -> Page | None:
    """Writes the tables and plots of runs of one task to `output`, replacing existing ones; None if the task
    has none."""
    carried_out = TASKS[task].load()
    if not hasattr(carried_out, "compare"):
        return None
    for plot in (*output.glob("*-print.*"), *output.glob("*-dark.png")):
        plot.unlink()  # which plots there are depends on what has finished
    page: Page = carried_out.compare(folders, output, axes=axes)
    return page


def _compare(plan: Plan, task: str, output: Path) -> None:
    cells = plan.of_task(task)
    folders = [cell.directory for cell in cells if cell.directory is not None]
    if not any(cell.finished for cell in cells):
        return
    try:
        comparison = compare_runs(task, folders, output, sweep_axes(cells))
    except ValueError as error:
        print(f"sweep {plan.name}: no comparison: {error}")
        return
    if comparison is None:
        return
    page = comparison.with_remark(f"Sweep {plan.name}{plan.asked_in_words}.")
    page.write_markdown(output)
    print(f"\n{page.text}\n\nsweep {plan.name}: tables and plots in {output}")


def _succeeded(result: JobReturn) -> bool:
    try:
        with redirect_stderr(io.StringIO()):  # Hydra would print all overrides, too
            return not result.return_value
    except Exception as error:
        if is_expected(error):
            print(f"error: {one_line(error)}")
        else:
            traceback.print_exception(error)
        return False


def share_profiles(plan: Plan) -> None:
    """Lets the sweep's unfinished runs use its profiles, or calibrate them for all; profiles that runs
    already have become the sweep's.

    A single run shares nothing, and a run that began with measured step times continues with them. Raises
    ValueError if a run's directory cannot be used.
    """
    cells = [cell for cell in plan.cells if cell.directory is not None and _shares(cell.config)]
    if len(cells) < 2:
        return
    folder = plan.output / PROFILES
    for cell in sorted(cells, key=lambda cell: not cell.finished):
        assert cell.directory is not None
        kept = own_profile(cell.directory)
        parts: list[Computation | CodecWork] = [] if kept is None else [*kept.computations, *kept.codecs]
        for part in parts:
            offer(folder, part)
        measures = kept is None and bool(checkpoints(cell.directory)) and cell.config.resume != "never"
        if not cell.done and not measures:
            request_profile(cell.directory, folder)


def _shares(config: RecordedConfig) -> bool:
    """True if a run uses a profile shared with others."""
    if not isinstance(config, RunConfig) or config.cluster.name != "virtual":
        return False
    return not isinstance(config.network, ShapedConfig) and config.network.compute == SHARED
