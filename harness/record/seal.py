"""Guards a record: no link leads out of it, and `DONE` says what its files hold.

`DONE` is written last, with the sha256 of the files that figures are taken from, so that later changes,
damage and exchanges are noticed when the record is read. It does not cover traces, plots and weights.
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
"""The files that a run, or a task that measures, leaves in its directory. Not `network.json`: its last
figures come when the links are taken down, after the run is done."""

CHECKPOINTS = "checkpoints"

FOLDERS = (CHECKPOINTS, "checkpoint", "trace", "plots", "timeline", "gradients", "weights", "wandb")
"""The folders that a run, or a task about it, writes to in its directory."""

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
    """Raises UnusableFileError if a file, which is read by itself, is not what the completed record in its
    folder says: it was changed or removed since, or came later. A file of no such record may hold
    anything."""
    if not os.path.lexists(path.parent / DONE):
        path = Path(os.path.realpath(path))  # a link of the user's may lead into a record
    if not os.path.lexists(path.parent / DONE):
        return
    digests = _digests(path.parent)
    if path.name in digests or (path.name in SEALED and os.path.lexists(path)):
        _check(path, digests.get(path.name))


def check_sealed_decisions(decisions: DecisionFile) -> None:
    """Raises ValueError, with the option that has asked for them, if `check_sealed` refuses decisions."""
    try:
        check_sealed(decisions.path)
    except UnusableFileError as error:
        said = f"{error.problem}; {error.remedy}" if error.path == decisions.path else str(error)
        raise ValueError(f"{decisions.option}: {said}") from None


def _digests(directory: Path) -> Mapping[str, Any]:
    """The digests that complete the record in `directory`."""
    path = directory / DONE
    content = read_bytes(path, remedy=REMEDY, inside=directory)
    if not content:
        raise UnusableFileError(path, "is empty: the digests of the record's files are lost", REMEDY)
    digests = parse_json(content, path, remedy=REMEDY).get("sha256")
    if not isinstance(digests, dict):
        raise UnusableFileError(path, "has no digests of the record's files", REMEDY)
    return digests


def _check(path: Path, digest: Any) -> None:
    """Raises UnusableFileError unless the file at `path` has this digest; None: it was not there."""
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
    """Raises UnusableFileError if something that a run reads or writes in its `directory` is a link.

    Writing through a link would change files outside. Other things there belong to the user.
    """
    for path in _own(directory):
        if path.is_symlink():
            problem = "is a link, and none is followed out of a run directory"
            raise UnusableFileError(path, problem, "replace it by what it leads to, or set hydra.run.dir=")


def _own(directory: Path) -> Iterator[Path]:
    """Folders come before what is in them, which is then not behind a link."""
    for name in (*SEALED, DONE, FAILED, TRACEBACKS, *FOLDERS):
        yield directory / name
    for name in FOLDERS[:-1]:  # wandb makes links of its own
        yield from (directory / name).glob("*")
    for checkpoint in (directory / CHECKPOINTS).glob("*"):
        yield from checkpoint.glob("*")
