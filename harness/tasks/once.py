"""What tasks do that measure in one go: begin a record, fill it, mark it as done; or show what is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.files.reading import read_text
from gradwire.harness.record.attempts import note_wall_time
from gradwire.harness.record.directory import DirectoryLock, mark_failed
from gradwire.harness.record.seal import REMEDY, check_done, mark_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.writer import begin_record
from gradwire.harness.runtime.errors import found_late
from gradwire.harness.tasks.tracked_tables import show_finished

TABLES = "tables.txt"


def run_once(config: RecordedConfig, directory: Path, measure: Callable[[], None]) -> bool:
    """Have `measure` write its files into `directory`, unless they are there: then say so. Returns whether it
    was called.

    Raises ValueError where another run holds the directory, or what lies there is another's or was edited.
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


Config = TypeVar("Config", bound=RecordedConfig)


def run_study(
    config: Config, directory: Path, write: Callable[[Config, Path], None], shown: Callable[[Path], str]
) -> int:
    """Has `write` leave the record of a study, once, and prints what is `shown` of it; returns 0."""
    run_once(config, directory, partial(write, config, directory))
    print(shown(directory))
    print(f"run: {directory}")
    return 0


def tables_in(directory: Path) -> str:
    """The tables that a study has written as text."""
    return read_text(directory / TABLES, remedy=REMEDY, inside=directory).removesuffix("\n")
