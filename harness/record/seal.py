"""Integrity of a record: no link leads out of it, and `DONE` holds digests of its files.

`DONE` is written last, with the sha256 of the files that figures are taken from, so that changes, damage and
replaced files are detected when the record is read. It does not cover traces, plots and weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradwire.codecs.decision_file import DecisionFile
from gradwire.harness.files.reading import MissingFileError, UnusableFileError, file_digest, read_bytes
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import DONE, FAILED, TRACEBACKS
from gradwire.harness.record.row_file import MOST_BYTES

SEALED = (
    "config.yaml",
    "run.json",
    "steps.jsonl",
    "evals.jsonl",
    "decisions.jsonl",
    "entropies.jsonl",
    "summary.json",
    "profile.json",
    "allreduce.json",
    "predict.json",
    "bench.json",
    "statistics.json",
    "scores.json",
    "overhead.json",
    "tables.txt",
)
"""The files that a run, or a task that measures, leaves in its directory. `network.json` is excluded, because
its last figures are written when the links are removed, after the run is done."""

CHECKPOINTS = "checkpoints"

FOLDERS = (CHECKPOINTS, "checkpoint", "trace", "plots", "timeline", "gradients", "weights", "wandb")
"""The folders in a run's directory that the run, or a task about it, writes to."""

REMEDY = "damaged or changed since the run was done; resume=never runs it again"


def mark_done(directory: Path) -> None:
    """Marks the record in `directory` as complete."""
    digests = {
        name: file_digest(directory / name, remedy=REMEDY, inside=directory)
        for name in SEALED
        if (directory / name).exists()
    }
    write_atomically(directory / DONE, json.dumps({"sha256": digests}, indent=1) + "\n")


def check_done(directory: Path) -> None:
    """Raises UnusableFileError unless the files of a completed record are unchanged."""
    for name, digest in _digests(directory).items():
        _check(directory / name, digest)


def check_sealed(path: Path) -> None:
    """Raises UnusableFileError if a file that is read on its own does not match the digest of the completed
    record in its folder: it was changed, removed or added since. A file outside a completed record is not
    checked."""
    if not os.path.lexists(path.parent / DONE):
        path = Path(os.path.realpath(path))  # a link of the user's may lead into a record
    if not os.path.lexists(path.parent / DONE):
        return
    digests = _digests(path.parent)
    if path.name in digests or (path.name in SEALED and os.path.lexists(path)):
        _check(path, digests.get(path.name))


def check_sealed_decisions(decisions: DecisionFile) -> None:
    """Raises ValueError, with the option that names the file, if `check_sealed` refuses a file of
    decisions.
    """
    try:
        check_sealed(decisions.path)
    except UnusableFileError as error:
        reason = f"{error.problem}; {error.remedy}" if error.path == decisions.path else str(error)
        raise ValueError(f"{decisions.option}: {reason}") from None


def _digests(directory: Path) -> Mapping[str, Any]:
    """The digests in the `DONE` of a record."""
    path = directory / DONE
    content = read_bytes(path, remedy=REMEDY, inside=directory)
    if not content:
        raise UnusableFileError(path, "is empty: the digests of the record's files are lost", REMEDY)
    digests = parse_json(content, path, remedy=REMEDY).get("sha256")
    if not isinstance(digests, dict):
        raise UnusableFileError(path, "has no digests of the record's files", REMEDY)
    return digests


def _check(path: Path, digest: Any) -> None:
    """Raises UnusableFileError unless the file at `path` has this digest; a digest of None means that it did
    not exist."""
    if digest is None:
        raise UnusableFileError(
            path, f"is not in {DONE}, which has the digests of the record's files", REMEDY
        )
    try:
        found = file_digest(path, remedy=REMEDY, inside=path.parent, most=MOST_BYTES)
    except MissingFileError:
        raise UnusableFileError(path, f"is missing, and {DONE} counts on it", REMEDY) from None
    if found != digest:
        raise UnusableFileError(path, f"differs from its digest in {DONE}", REMEDY)


def refuse_links_in(directory: Path) -> None:
    """Raises UnusableFileError if a file or folder that a run reads or writes in its `directory` is a link.

    Writing through a link would change files outside. Other files there belong to the user.
    """
    for path in _own(directory):
        if path.is_symlink():
            problem = "is a link, and none is followed out of a run directory"
            raise UnusableFileError(path, problem, "replace it by its target, or set hydra.run.dir=")


def _own(directory: Path) -> Iterator[Path]:
    """The run's own files and folders; a folder comes before its contents, so that a link to a folder is
    found before anything behind it."""
    for name in (*SEALED, DONE, FAILED, TRACEBACKS, *FOLDERS):
        yield directory / name
    for name in FOLDERS[:-1]:  # wandb makes links of its own
        yield from (directory / name).glob("*")
    for checkpoint in (directory / CHECKPOINTS).glob("*"):
        yield from checkpoint.glob("*")
