"""A run's directory: the locations of its files, its lock, and the markers that say how the run ended."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.codecs.fields import LONGEST_LIST, range_of
from gradwire.codecs.wording import shortened
from gradwire.harness.files.reading import (
    MissingFileError,
    UnusableFileError,
    file_digest,
    open_file,
    printable,
)
from gradwire.harness.files.writing import write_atomically

CONFIG, STEPS, EVALUATIONS, SUMMARY = "config.yaml", "steps.jsonl", "evals.jsonl", "summary.json"
WEIGHTS, PLOTS = "checkpoint", "plots"
DONE, FAILED, TRACEBACKS = "DONE", "FAILED", "tracebacks.txt"

GRADIENTS, SAVED_WEIGHTS = "gradients", "weights"
"""The folders for tensors saved in chosen steps, one file per step."""

STEP_FILE = re.compile(r"step(\d+)\.safetensors")

ENTROPIES = "entropies.jsonl"

PROFILE, PROFILES = "profile.json", "profiles"
"""A run's own copy of the profile that its clock uses, and a sweep's folder of profiles."""

PROFILE_REMEDY = "give one that a sweep or a run on the virtual cluster has written"

DIVERGED = "diverged"
"""The first word of `FAILED` if training diverged, in which case the same run would diverge again."""

MOST_REASON = 1000
"""The largest number of characters of `FAILED` that are read."""


class DivergedError(RuntimeError):
    """Raised if training cannot continue; the text is one line that begins with `DIVERGED`."""

    final = True  # every attempt would end so


MOST_PATH = 4096
"""The largest number of characters of a path."""


def make_directory(directory: Path) -> None:
    """Makes sure that files can be written to `directory`; raises ValueError in one line if not.

    Refuses names with invisible characters, because messages would show a different name.
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
    """Returns whether a run has finished in `directory`."""
    return (directory / DONE).is_file()


def mark_failed(directory: Path, reason: str) -> None:
    """Writes the reason, one line, to the directory of a run that did not finish.

    Errors in writing are ignored: if a full disk is the reason, the caller's own error says so.
    """
    if directory.is_dir() and not is_done(directory):
        with contextlib.suppress(OSError):
            write_atomically(directory / FAILED, " ".join(reason.split()) + "\n")


def failure_in(directory: Path) -> str:
    """The line in a failed run's `FAILED`, or the reason why there is none."""
    try:
        with open_file(directory / FAILED, remedy="remove it", inside=directory) as file:
            text = file.read(MOST_REASON).decode("utf-8", "replace")
    except UnusableFileError as error:
        return f"{FAILED} {error.problem}"
    return printable(text.strip(), MOST_REASON) or "no reason recorded"


def divergence_in(directory: Path) -> str | None:
    """The reason why the run in `directory` diverged, one line; None unless its last attempt diverged."""
    reason = failure_in(directory)
    return reason if reason.startswith(f"{DIVERGED} ") else None


def forget_failure(directory: Path) -> None:
    """Removes the failure of an earlier attempt, because a new one begins."""
    for name in (FAILED, TRACEBACKS):
        (directory / name).unlink(missing_ok=True)


def saved_path(directory: Path, step: int, what: str = GRADIENTS) -> Path:
    """The file of the gradients, or of the weights, of `step`."""
    return directory / what / f"step{step}.safetensors"


def step_files(folder: str | Path) -> dict[int, Path]:
    """The saved files of a run directory, or of a folder of such files, by step."""
    place = Path(folder).expanduser()
    place = place / GRADIENTS if (place / GRADIENTS).is_dir() else place
    found = ((STEP_FILE.fullmatch(path.name), path) for path in place.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def listed_steps(key: str, given: Sequence[Any]) -> list[int]:
    """The steps that `measure.<key>` gives, with ranges replaced by their steps, each once; without ranges as
    they are. Raises ValueError for too many.
    """
    ranges = [range_of(each) for each in given]
    if not any(ranges):
        return list(given)
    found = [[each] if steps is None else steps for each, steps in zip(given, ranges, strict=True)]
    if (count := sum(map(len, found))) > LONGEST_LIST:
        raise ValueError(
            f"measure.{key}={shortened(list(given))}: has {count} steps; choose at most {LONGEST_LIST}"
        )
    return list(dict.fromkeys(step for steps in found for step in steps))


def check_saved_steps(key: str, steps: Sequence[int], num_steps: int) -> None:
    """Raises ValueError unless all `steps` of `measure.<key>` are steps of a run of `num_steps`."""
    beyond = [step for step in steps if not 0 <= step < num_steps]
    if beyond:
        raise ValueError(
            f"measure.{key}={shortened(list(steps))}: the run has the steps 0 to {num_steps - 1}, "
            f"and not {shortened(', '.join(map(str, beyond)))}"
        )


def profile_files(path: Path) -> list[Path]:
    """The file itself, or those of a folder of profiles, in the order of their names."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def found_profiles(given: Path) -> Path:
    """The file or folder of profiles for a path given by the user: a file, the file of a run's directory, or
    a sweep's folder. Raises MissingFileError."""
    path = Path(os.path.realpath(given.expanduser()))
    for found in (path / PROFILE, path / PROFILES, path):
        if found.is_file() or (found.is_dir() and any(found.glob("*.json"))):
            return found
    raise MissingFileError(given, "there is no profile", PROFILE_REMEDY)


def profiles_digest(path: Path) -> str:
    """The sha256 of the contents of a file or folder of profiles, independent of file names."""
    digests = sorted(file_digest(each, remedy=PROFILE_REMEDY) for each in profile_files(path))
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
