"""One cell of a sweep before it starts: composed and checked, with its directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.config.cells import (
    SweepCell,
    override_text,
)
from gradwire.harness.config.compose import compose
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.root_keys import SweepConfig
from gradwire.harness.config.run_name import run_directory, run_name
from gradwire.harness.config.sweep_text import benchmarks_of, text_of
from gradwire.harness.config.typed import task_of, typed
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import is_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.tasks.sweep_folder import cell_text
from gradwire.harness.tracking.settings import WandbConfig

EXPERIMENT = "experiment"
"""The group of presets: runs record the values of a preset, not its name."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell that can run, and its directory; None while that depends on files that do not exist yet."""

    cell: SweepCell
    config: RecordedConfig
    directory: Path | None
    described: str
    """Its description, independent of earlier runs: `sweep_folder.cell_text`."""
    text: str | None = None
    """The name of its training text, without folders of this machine."""

    @property
    def done(self) -> bool:
        """True if it need not run; with `resume=never` it always must."""
        return self.directory is not None and is_finished(self.config, self.directory)

    @property
    def finished(self) -> bool:
        """True if its directory holds a finished record."""
        return self.directory is not None and is_done(self.directory)

    @property
    def task(self) -> str:
        return self.config.task.name

    @property
    def needed(self) -> dict[str, Any]:
        """Its values of axes that its own configuration may lack: those of needed cells, and its preset."""
        swept = self.cell.swept.items()
        kept = [(key, text) for key, text in swept if self.cell.sources or key == EXPERIMENT]
        return {key: parse([f"value={text}"])[0].value() for key, text in kept}

    def tracked_in(self, sweep: str) -> RecordedConfig:
        """Its configuration with the sweep's name as the group of its wandb run, unless it has another."""
        tracking = getattr(self.config, "tracking", None)
        if not isinstance(tracking, WandbConfig) or tracking.group is not None:
            return self.config
        return replace(self.config, tracking=replace(tracking, group=sweep))  # type: ignore[call-arg]

    def launch_overrides(self, sweep: str) -> list[str]:
        """Its overrides, the group of its wandb run and the directory, for Hydra's launchers."""
        assert self.directory is not None
        parent, name = override_text(str(self.directory.parent)), override_text(self.directory.name)
        group = [f"tracking.group={override_text(sweep)}"] if self.tracked_in(sweep) != self.config else []
        return [*self.cell.overrides, *group, f"hydra.sweep.dir={parent}", f"hydra.sweep.subdir={name}"]


def planned_cell(
    cell: SweepCell, asked: Path | None, settings: SweepConfig, given: Sequence[str]
) -> PlannedCell:
    """Composes and checks a cell, with its directory below `asked`; `given` are the keys set on the command
    line. Raises ConfigError."""
    try:
        cell, composed, text = chosen_text(cell, settings, given)
        config = typed_cell(composed)
        about = cell_text(cell, config)
        if any(source.directory is None or not is_done(source.directory) for source in cell.sources):
            return PlannedCell(cell, config, None, about, text)
        checked = validate_any(composed)
        assert isinstance(checked, RecordedConfig)
        directory = run_directory(checked, asked and asked / run_name(checked))
        check_directory(checked, directory)
    except ValueError as error:
        raise ConfigError(f"{_where(cell, str(error))}{error}") from None
    return PlannedCell(cell, checked, directory, about, text)


def chosen_text(
    cell: SweepCell, settings: SweepConfig, given: Sequence[str]
) -> tuple[SweepCell, DictConfig, str | None]:
    """A cell with the text and the benchmarks' files that the sweep's `settings` choose for it, its
    configuration, and the name of that text; `given` are the keys set on the command line.

    Raises ValueError.
    """
    composed = compose(cell.overrides, named_by_user=False)
    task, text = task_of(composed), None
    if not task.has_directory:
        command = f"{program()} task={composed.task.name}"
        raise ValueError(
            f"task={composed.task.name} keeps nothing and cannot be part of a sweep; use: {command}"
        )
    chosen = benchmarks_of(cell.overrides, composed, given, settings.data)
    if task.trains:
        trained_on = text_of(cell.overrides, composed, given, settings.data)
        chosen, text = trained_on.overrides, trained_on.name
    if tuple(chosen) != cell.overrides:
        cell = replace(cell, overrides=tuple(chosen))
        composed = compose(cell.overrides, named_by_user=False)
    return cell, composed, text


def typed_cell(composed: DictConfig) -> RecordedConfig:
    """The settings of a composed cell, without checks."""
    config = typed(composed)
    assert isinstance(config, RecordedConfig)
    return config


def _where(cell: SweepCell, refusal: str) -> str:
    """`cell seed=0: `: the part of a cell's name that its refusal does not contain."""
    texts = {f"{key}={value}": f"{key}={value}".replace("\\", "") for key, value in cell.swept.items()}
    unsaid = [text for text, plain in texts.items() if plain not in refusal]
    return f"cell {' '.join(unsaid)}: " if unsaid else ""
