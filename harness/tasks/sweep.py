"""A sweep: plan all cells, run the unfinished ones, compare the finished ones.

Nothing starts before every cell has been composed and validated. A cell whose run directory is done
is skipped, so that the same command resumes an interrupted sweep; a failed cell does not stop it.
"""

from __future__ import annotations

import hashlib
import importlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra.conf import HydraConf
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.config.cells import Cell, expand, override_text, swept_keys
from gradwire.harness.config.compose import compose
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.plugins import allow_plugins
from gradwire.harness.config.run_name import run_directory, run_name
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.config.typed import task_of
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.report.configs import covered, flatten
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.tasks.main import is_expected, one_line
from gradwire.harness.tracking.settings import WandbConfig

Launch = Callable[[list[list[str]], int], Sequence[JobReturn]]
"""Hydra's launcher: takes the overrides of some cells and the number of the first, returns their results."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell that is known to be runnable, and its directory."""

    cell: Cell
    config: RecordedConfig
    directory: Path

    @property
    def done(self) -> bool:
        return is_finished(self.config, self.directory)

    def launch_overrides(self, sweep: str) -> list[str]:
        """The cell's overrides, the sweep's name as its group and the directory, for Hydra's launchers."""
        parent, name = override_text(str(self.directory.parent)), override_text(self.directory.name)
        tracking = getattr(self.config, "tracking", None)
        nameless = isinstance(tracking, WandbConfig) and tracking.group is None
        group = [f"tracking.group={override_text(sweep)}"] if nameless else []
        return [*self.cell.overrides, *group, f"hydra.sweep.dir={parent}", f"hydra.sweep.subdir={name}"]


@dataclass(frozen=True)
class Plan:
    """A sweep before it starts; all its cells have the same task."""

    name: str
    task: str
    cells: list[PlannedCell]
    axes: list[str]
    output: Path


def plan_sweep(hydra: HydraConf, arguments: Sequence[str]) -> Plan:
    """Plans all cells of the sweep that Hydra's own node and the command line describe.

    Raises ConfigError, naming the cell, if one of them cannot run.
    """
    if hydra.run.dir != ".":
        raise ConfigError(
            f"hydra.run.dir={hydra.run.dir} would be shared by all runs of a sweep; use "
            f"hydra.sweep.dir={hydra.run.dir}"
        )
    allow_plugins(parse(arguments))
    choices = hydra.runtime.choices
    cases = cast(dict[str, Any], OmegaConf.to_container(cast(Any, hydra.sweeper).cases))
    asked = None if hydra.sweep.dir == "." else Path(hydra.sweep.dir)
    cells = [_planned(cell, asked) for cell in expand(cases, choices["size"], arguments)]
    cells = list({cell.directory: cell for cell in cells}.values())
    name = f"{choices['sweeps']}-{choices['size']}" if choices.get("sweeps") else _digest(cells)
    output = asked or Path("outputs") / "sweeps" / name
    return Plan(name, _only_task(cells), cells, sweep_axes(cells), output)


def _only_task(cells: Sequence[PlannedCell]) -> str:
    tasks = list(dict.fromkeys(cell.config.task.name for cell in cells))
    if len(tasks) > 1:
        raise ConfigError(f"task={','.join(tasks)}: a sweep has one task; run one sweep for each")
    return tasks[0]


def sweep_axes(cells: Sequence[PlannedCell]) -> list[str]:
    """The dotted keys in which the cells differ: the swept ones, then those that follow from them.

    For example, a swept `model` brings its own learning rate. The seed is no axis.
    """
    swept = [key for key in swept_keys([cell.cell for cell in cells]) if key != "seed"]
    flat = [flatten(cell.config.mapping()) for cell in cells]
    keys = sorted({key for settings in flat for key in settings})
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    return [*swept, *(key for key in differing if key != "seed" and not covered(key, swept))]


def run_sweep(plan: Plan, launch: Launch, batch: int) -> list[PlannedCell]:
    """Runs the unfinished cells, `batch` per call of `launch`, and compares; returns the failed ones."""
    waiting = [cell for cell in plan.cells if not cell.done]
    print(
        f"sweep {plan.name}: {len(plan.cells)} runs, {len(plan.cells) - len(waiting)} of them finished before"
    )
    failed: list[PlannedCell] = []
    for first in range(0, len(waiting), batch):
        cells = waiting[first : first + batch]
        for index, cell in enumerate(cells, first + 1):
            print(f"[{index}/{len(waiting)}] {cell.cell.label} -> {cell.directory}", flush=True)
        results = launch([cell.launch_overrides(plan.name) for cell in cells], first)
        failed += [cell for cell, result in zip(cells, results, strict=True) if not _succeeded(result)]
    finish_sweep(plan)
    for cell in failed:
        print(f"failed: {cell.cell.label} ({cell.directory})")
    return failed


def finish_sweep(plan: Plan) -> None:
    """Compares the sweep's runs as their task does: tables, which are also printed, and plots in its
    folder."""
    task = importlib.import_module(TASKS[plan.task].module)
    if not hasattr(task, "compare"):
        return
    try:
        comparison = task.compare([cell.directory for cell in plan.cells], plan.output, axes=plan.axes)
    except ValueError as error:
        print(f"sweep {plan.name}: no comparison: {error}")
        return
    print(f"\n{comparison.text}\n\nsweep {plan.name}: tables and plots in {plan.output}")


def _planned(cell: Cell, asked: Path | None) -> PlannedCell:
    try:
        composed = compose(cell.overrides, named_by_user=False)
        if not task_of(composed).has_directory:
            command = f"{program()} task={composed.task.name}"
            raise ValueError(
                f"task={composed.task.name} keeps nothing and cannot be part of a sweep; use: {command}"
            )
        config = validate_any(composed)
        assert isinstance(config, RecordedConfig)
        directory = run_directory(config, asked and asked / run_name(config))
        check_directory(config, directory)
    except ValueError as error:
        raise ConfigError(f"{_where(cell, str(error))}{error}") from None
    return PlannedCell(cell, config, directory)


def _where(cell: Cell, refusal: str) -> str:
    """`cell seed=0: `: the part of a cell's name that its refusal does not contain."""
    texts = {f"{key}={value}": f"{key}={value}".replace("\\", "") for key, value in cell.swept.items()}
    unsaid = [text for text, plain in texts.items() if plain not in refusal]
    return f"cell {' '.join(unsaid)}: " if unsaid else ""


def _succeeded(result: JobReturn) -> bool:
    outcome = result._return_value  # an exit code or an error; `return_value` would print all overrides, too
    if result.status is JobStatus.COMPLETED:
        return not outcome
    if is_expected(outcome):
        print(f"error: {one_line(outcome)}")
    else:
        traceback.print_exception(outcome)
    return False


def _digest(cells: Sequence[PlannedCell]) -> str:
    names = sorted(cell.directory.name for cell in cells)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
