"""One cell of a sweep before it starts: composed and checked, with its directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.config.compose import compose, kept_by_the_model
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.root_keys import SweepConfig
from gradwire.harness.config.run_name import run_directory, run_name
from gradwire.harness.config.typed import task_of, typed
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import is_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.report.configs import changes_result, covered, flatten
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.sweeps.cell_data import data_of
from gradwire.harness.sweeps.cells import SweepCell, override_text
from gradwire.harness.tracking.settings import WandbConfig

EXPERIMENT = "experiment"
"""The group of presets: runs record the values of a preset, not its name."""

OF_SWEEP = ("sweeps", "size", "sweep", "hydra")
"""Keys on the command line that choose a sweep and its execution."""

READ = ("run", "checkpoint", "score.data")
"""Keys whose paths count by their contents in ids, and in descriptions as they are written: a needed cell's
record has no contents yet."""


def makes_another_cell(key: str) -> bool:
    """True if a key of the command line or of a configuration affects the identity of a cell."""
    return covered(key, READ) or (changes_result(key) and not covered(key.partition("/")[0], OF_SWEEP))


@dataclass(frozen=True)
class ComposedCell:
    """A cell with the text and the benchmarks' files that its sweep chooses for it; composed, unchecked."""

    cell: SweepCell
    composed: DictConfig
    text: str | None
    """The name of its training text, without folders of this machine."""

    @cached_property
    def config(self) -> RecordedConfig:
        """Its settings, unchecked."""
        config = typed(self.composed)
        assert isinstance(config, RecordedConfig)
        return config

    @property
    def description(self) -> str:
        """Its settings, whatever has run before: in place of the paths that it takes from needed cells it has
        the words for these."""
        settings: dict[str, Any] = flatten(self.config.mapping())
        if self.cell.sources:
            settings |= {key: words for key, words in self.cell.swept.items() if key in settings}
        kept = {key: value for key, value in settings.items() if makes_another_cell(key)}
        sources = sorted(source.label for source in self.cell.sources)
        return json.dumps([kept, sources], sort_keys=True, default=str)


def composed_cell(cell: SweepCell, settings: SweepConfig, given: Sequence[str]) -> ComposedCell:
    """Composes a cell of a sweep with these `settings`; the command line has set the keys `given`.

    Raises ValueError.
    """
    composed = compose(cell.overrides, named_by_user=False)
    if not task_of(composed).has_directory:
        command = f"{program()} task={composed.task.name}"
        raise ValueError(
            f"task={composed.task.name} keeps nothing and cannot be part of a sweep; use: {command}"
        )
    data = data_of(cell.overrides, composed, given, settings.data)
    if tuple(data.overrides) != cell.overrides:
        cell = replace(cell, overrides=tuple(data.overrides))
        composed = compose(cell.overrides, named_by_user=False)
    return ComposedCell(cell, composed, data.text)


@dataclass(frozen=True)
class PlannedCell:
    """A cell that can run, and its directory; None while that depends on files that do not exist yet."""

    cell: SweepCell
    config: RecordedConfig
    directory: Path | None
    description: str
    """As of the composed cell."""
    text: str | None = None
    """The name of its training text."""

    @property
    def label(self) -> str:
        return self.cell.label

    @property
    def run(self) -> str:
        """The name of its run; its label as long as that is not known."""
        return self.label if self.directory is None else self.directory.name

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
    def starts_workers(self) -> bool:
        """True if it starts processes of its own."""
        cluster = getattr(self.config, "cluster", None)
        return cluster is not None and cluster.name != "virtual"

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
        """Its overrides, the group of its wandb run and the directory, for Hydra's launchers. What a model
        keeps at every size comes first, for Hydra alone would compose the size's."""
        assert self.directory is not None
        parent, name = override_text(str(self.directory.parent)), override_text(self.directory.name)
        group = [f"tracking.group={override_text(sweep)}"] if self.tracked_in(sweep) != self.config else []
        kept = [
            f"{key}={override_text(value)}" for key, value in kept_by_the_model(self.cell.overrides).items()
        ]
        return [
            *kept,
            *self.cell.overrides,
            *group,
            f"hydra.sweep.dir={parent}",
            f"hydra.sweep.subdir={name}",
        ]


def planned_cell(
    cell: SweepCell, asked: Path | None, settings: SweepConfig, given: Sequence[str]
) -> PlannedCell:
    """Composes and checks a cell, with its directory below `asked`; `given` are the keys set on the command
    line. Raises ConfigError."""
    try:
        found = composed_cell(cell, settings, given)
        cell, config, directory = found.cell, found.config, None
        if all(source.directory is not None and is_done(source.directory) for source in cell.sources):
            checked = validate_any(found.composed)
            assert isinstance(checked, RecordedConfig)
            config, directory = checked, run_directory(checked, asked and asked / run_name(checked))
            check_directory(config, directory)
        return PlannedCell(cell, config, directory, found.description, found.text)
    except ValueError as error:
        # Values of the cell's label that the refusal does not name.
        texts = {f"{key}={value}": f"{key}={value}".replace("\\", "") for key, value in cell.swept.items()}
        unnamed = [text for text, plain in texts.items() if plain not in str(error)]
        where = f"cell {' '.join(unnamed)}: " if unnamed else ""
        raise ConfigError(f"{where}{error}") from None
