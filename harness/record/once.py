"""The record of what is done in one go: begun, written, marked as done, or as failed with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from gradwire.harness.record.directory import DirectoryLock, mark_failed
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.writer import begin_record


@contextmanager
def done_at_once(config: DictConfig, directory: Path) -> Iterator[None]:
    """Hold `directory`, start its record anew, and mark it as done when the body has come to its end.

    Raises ValueError when another run holds it.
    """
    lock = DirectoryLock(directory)
    try:
        begin_record(directory, config)
        yield
        mark_done(directory)
    except Exception as error:
        mark_failed(directory, f"{type(error).__name__}: {error}")
        raise
    finally:
        lock.release()
