"""Shows records in wandb that are no training runs: those of studies, and sweeps with their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.record.writer import CONFIG
from gradwire.harness.report.frame import STUDIES
from gradwire.harness.report.wandb_tables import is_sweep, study_tables, sweep_config, sweep_tables
from gradwire.harness.tracking.follow import show_tables
from gradwire.harness.tracking.login import choose_mode
from gradwire.harness.tracking.settings import WandbConfig


def has_tables(directory: Path) -> bool:
    """Whether the record in `directory` is a sweep's or a study's."""
    return is_sweep(directory) or _task(directory) in STUDIES


def show_record(tracking: Mapping[str, Any], directory: Path) -> bool:
    """Shows the record of a study or a sweep; returns whether that succeeded.

    Raises ValueError in one line if the record is damaged or not finished.
    """
    if is_sweep(directory):
        config, tables = sweep_config(directory), sweep_tables(directory)
    else:
        config = read_yaml(directory / CONFIG, remedy=REMEDY, inside=directory)
        tables = study_tables(directory, str(_task(directory)))
    if not any(table["rows"] for table in tables.values()):
        raise ValueError(f"{directory} has no figures: it is not finished")
    return show_tables(tracking, config, directory, tables, {"status": "done"})


def show_finished(config: RecordedConfig, directory: Path) -> None:
    """Shows a record that has just been finished if its configuration says so."""
    tracking = getattr(config, "tracking", None)
    if isinstance(tracking, WandbConfig) and choose_mode(tracking.mode) != "disabled":
        show_record(asdict(tracking), directory)


def _task(directory: Path) -> str | None:
    if not (directory / CONFIG).is_file():
        return None
    task = read_yaml(directory / CONFIG, remedy=REMEDY, inside=directory).get("task")
    return str(task.get("name")) if isinstance(task, Mapping) else None
