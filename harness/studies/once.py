"""What tasks do that measure in one go: begin a record, fill it, mark it as done; or show what is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.record.attempts import note_wall_time
from gradwire.harness.record.directory import DirectoryLock, mark_failed
from gradwire.harness.record.seal import check_done, mark_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.writer import begin_record
from gradwire.harness.runtime.errors import found_late
from gradwire.harness.studies.tracked import show_finished


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
