"""Records that are written in one go: begun, filled, marked as done, and shown in wandb."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.attempts import note_wall_time
from gradwire.harness.record.busy import BUSY
from gradwire.harness.record.directory import CONFIG, DirectoryLock, mark_failed
from gradwire.harness.record.figures import study_records
from gradwire.harness.record.seal import check_done, mark_done
from gradwire.harness.record.settings import Configuration, RecordedConfig
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.record.writer import begin_record
from gradwire.harness.report.busy_times import busy_cells
from gradwire.harness.report.frame import task_in
from gradwire.harness.report.sweep_record import read_sweep_record
from gradwire.harness.report.wandb_tables import (
    is_sweep,
    study_tables,
    sweep_config,
    sweep_curves,
    sweep_tables,
    sweep_tags,
)
from gradwire.harness.runtime.errors import found_late
from gradwire.harness.tracking import follow
from gradwire.harness.tracking.messages import plots
from gradwire.harness.tracking.settings import WandbConfig, choose_mode


def run_once(config: RecordedConfig, directory: Path, measure: Callable[[], None]) -> bool:
    """Calls `measure` to write its files into `directory`; if they already exist, prints that instead.
    Returns whether it was called.

    Raises ValueError if another run holds the directory, or if its contents belong to another run or were
    edited.
    """
    check_directory(config, directory)
    if is_finished(config, directory):
        print(f"already finished: {directory} (resume=never runs it again)")
        check_done(directory)
        return False
    lock = DirectoryLock(directory)
    try:
        begin_record(directory, config)
        began = time.perf_counter()
        measure()
        note_wall_time(directory, time.perf_counter() - began)
        mark_done(directory)
    except Exception as error:
        found_late(error)
        mark_failed(directory, f"{type(error).__name__}: {error}")
        raise
    finally:
        lock.release()
    show_finished(config, directory)
    return True


def has_tables(directory: Path) -> bool:
    """True if the record in `directory` is that of a sweep or a study."""
    is_study = (directory / CONFIG).is_file() and task_in(directory) in study_records()
    return is_study or is_sweep(directory)


def show_record(tracking: Mapping[str, Any], directory: Path) -> bool:
    """Shows the record of a study or a sweep; returns whether that succeeded.

    Raises ValueError in one line if the record is damaged or not finished.
    """
    attempt, about = None, {"status": "done"}
    if is_sweep(directory):
        record = read_sweep_record(directory)
        config, tables, curves = sweep_config(record), sweep_tables(record, directory), sweep_curves(record)
        name = record.folder
        own = {"group": tracking["group"] or name, "tags": [*sweep_tags(record), *tracking["tags"]]}
        tracking = {**tracking, **own}  # the group is that of its cells
        busy = busy_cells(record, record.cells)
        about |= {BUSY: busy} if busy else {}
        attempt = f"{hashlib.sha256(name.encode()).hexdigest()[:12]}-1"
        drawn = plots(directory, ".") | plots(directory, "*")  # where it mixes tasks, each has a folder
    else:
        config = read_yaml(directory / CONFIG, remedy=REMEDY, inside=directory)
        tables, curves = study_tables(directory, task_in(directory)), {}
        drawn = plots(directory)
    if not any(table["rows"] for name, table in tables.items() if name != "cells"):
        raise ValueError(f"{directory} has no figures: it is not finished")
    content = {"tables": tables, "curves": curves, "plots": drawn, "summary": about}
    return follow.show_content(tracking, config, directory, content, attempt)


def show_finished(config: Configuration, directory: Path) -> None:
    """Shows the record just written if `config`, its own or that of a sweep's cell, asks for it.

    Failures are only reported in a line, because the record is already complete.
    """
    tracking = getattr(config, "tracking", None)
    if not isinstance(tracking, WandbConfig) or choose_mode(tracking.mode) == "disabled":
        return
    if has_tables(directory):
        try:
            show_record(asdict(tracking), directory)
        except ValueError as error:
            print(f"warning: not shown in wandb: {error}")
