"""A run's directory: one owner at a time, and markers that say how the run ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from gradwire.harness.files.reading import UnusableFileError, open_file, printable
from gradwire.harness.files.writing import write_atomically

CONFIG, STEPS, EVALUATIONS, SUMMARY = "config.yaml", "steps.jsonl", "evals.jsonl", "summary.json"
WEIGHTS, PLOTS = "checkpoint", "plots"
DONE, FAILED, TRACEBACKS = "DONE", "FAILED", "tracebacks.txt"

DIVERGED = "diverged"
"""The first word of `FAILED` if training diverged: the same run would end in this way again."""

MOST_REASON = 1000
"""Most characters of `FAILED` that are read."""


class DivergedError(RuntimeError):
    """Training cannot go on; the text is one line that begins with `DIVERGED`."""

    final = True  # every attempt would end so


MOST_PATH = 4096
"""Characters of a path."""


def make_directory(directory: Path) -> None:
    """Makes sure that files can be written to `directory`; raises ValueError in one line if not.

    Refuses names with invisible characters, because a message would show another name.
    """
    if str(directory) != printable(str(directory), MOST_PATH):
        raise ValueError(
            f"{printable(str(directory))}: has characters that do not show, or too many of them; choose "
            "another folder with hydra.run.dir="
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(
            f"{directory}: {error.strerror}; choose a folder that can be written to with hydra.run.dir= "
            "(hydra.sweep.dir= for a sweep)"
        ) from None


class DirectoryLock:
    """Keeps a run directory to one run at a time; the system releases it if the process dies."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self._descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise ValueError(
                f"{directory} is in use by another run; wait for it or set hydra.run.dir="
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise ValueError(
                f"{directory} cannot be locked ({error.strerror}); choose a folder on another file system "
                "with hydra.run.dir="
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)


def is_done(directory: Path) -> bool:
    """Whether a run has finished there."""
    return (directory / DONE).is_file()


def mark_failed(directory: Path, reason: str) -> None:
    """Writes the reason, one line, to the directory of a run that did not finish.

    A full disk, which may itself be the reason, has no room for it: the caller's own error says it.
    """
    if directory.is_dir() and not is_done(directory):
        with contextlib.suppress(OSError):
            write_atomically(directory / FAILED, " ".join(reason.split()) + "\n")


def failure_in(directory: Path) -> str:
    """The line that a failed run has left, or the reason why there is none."""
    try:
        with open_file(directory / FAILED, remedy="remove it", inside=directory) as file:
            text = file.read(MOST_REASON).decode("utf-8", "replace")
    except UnusableFileError as error:
        return f"{FAILED} {error.problem}"
    return printable(text.strip(), MOST_REASON) or "no reason recorded"


def divergence_in(directory: Path) -> str | None:
    """Why the run in `directory` diverged, one line; None unless its last attempt did."""
    reason = failure_in(directory)
    return reason if reason.startswith(f"{DIVERGED} ") else None


def forget_failure(directory: Path) -> None:
    """Removes what an earlier attempt said about its end, because a new one begins."""
    for name in (FAILED, TRACEBACKS):
        (directory / name).unlink(missing_ok=True)
