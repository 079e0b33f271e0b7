"""`task=sync run=<folder>`: recreates the wandb runs of records, finished or not."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.harness.config.tasks import SyncTask
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG, DirectoryLock
from gradwire.harness.record.runs import find_runs, load_run
from gradwire.harness.record.seal import refuse_links_in
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.sweep_record import find_sweep_records
from gradwire.harness.studies.once import has_tables, show_record
from gradwire.harness.tracking.follow import upload_recorded
from gradwire.harness.tracking.settings import WandbConfig, choose_mode

MOST_NAMED = 5
"""The largest number of records that are listed before the first one is shown."""


def run(config: SyncTask) -> int:
    """Shows every record that `run=` names in wandb; returns 1 if one of them could not be shown."""
    found = records(config.run)
    if len(found) > 1:
        names = [str(directory) for directory in found[:MOST_NAMED]] + ["…"] * (len(found) > MOST_NAMED)
        print(f"{len(found)} records to show: {', '.join(names)}", flush=True)
    shown = [_show(config, directory) for directory in found]
    return int(not all(shown))


def _show(config: SyncTask, directory: Path) -> bool:
    try:
        lock = DirectoryLock(directory)  # a running run is shown by its own process
        try:
            refuse_links_in(directory)
            if has_tables(directory):
                print(f"{directory}: tables", flush=True)
                return show_record(settings(config, recorded_config(directory)), directory)
            found = load_run(directory)
            rows = f"{len(found.steps)} steps, {len(found.evals)} evaluations"
            print(f"{directory}: {rows}, {found.status}", flush=True)
            return upload_recorded(settings(config, found.config), directory)
        finally:
            lock.release()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return False


def records(asked: str | list[str]) -> list[Path]:
    """The run directories selected by `run=`: a folder, a pattern (`outputs/*-s0-*`), or a list of them.

    A folder means all runs, and all records of sweeps, below it. Raises ValueError in one line if there is
    none, and for the root folder, which would include all users' runs.
    """
    wanted = [asked] if isinstance(asked, str) else asked
    found: dict[Path, None] = {}
    for pattern in wanted:
        folders = _folders(pattern)
        runs = [path for path in find_runs(folders) if (path / "config.yaml").is_file()]
        sweeps = [path for folder in folders for path in find_sweep_records(folder)]
        if not runs and not sweeps:
            raise ValueError(f"run={pattern}: no run directory is there; use run=outputs/<run>")
        # wandb keeps a config.yaml of its own in its folders.
        found |= dict.fromkeys(path for path in runs if not set(path.parents) & set(runs))
        found |= dict.fromkeys(sweeps)
    return list(found)


def _folders(pattern: str) -> list[Path]:
    """The paths that a pattern matches. It has to begin somewhere below the root of all folders, or all of
    them would be searched."""
    place = Path(pattern).expanduser()
    fixed = place
    while glob.has_magic(str(fixed)):
        fixed = fixed.parent
    matched = sorted(glob.iglob(str(place))) if not _is_root(fixed) else [str(fixed)]
    found = [Path(path) for path in matched if os.path.isdir(path)]
    if any(map(_is_root, found)):
        raise ValueError(
            f"run={pattern}: all folders of the machine would be searched; use run=outputs/<run>"
        )
    return found


def _is_root(folder: Path) -> bool:
    return folder.exists() and os.path.samefile(folder, os.sep)


def recorded_config(directory: Path) -> Mapping[str, Any]:
    """The configuration of a study's record; empty for a sweep's, which has none of its own."""
    path = directory / CONFIG
    return read_yaml(path, remedy=REMEDY, inside=directory) if path.is_file() else {}


def settings(config: SyncTask, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tracking settings for a record of configuration `found`: the command line decides, else the record
    itself, else the defaults."""
    recorded = found.get("tracking") or {}
    tracking = asdict(WandbConfig())
    if isinstance(config.tracking, WandbConfig):
        group = recorded.get("group")  # the sweep's name, unless the command line has another
        chosen = asdict(config.tracking)
        tracking |= chosen | ({"group": group} if chosen["group"] is None else {})
    elif recorded.get("name") == "wandb":
        tracking |= recorded
    if choose_mode(tracking["mode"]) == "disabled":
        raise ValueError("wandb is disabled by tracking.mode or WANDB_MODE; use tracking.mode=offline")
    return tracking
