"""`DONE`: says that a record is complete, and what its files hold.

It is written last, with the sha256 of the files that figures are taken from: what is changed, damaged or
exchanged afterwards is noticed when the record is read. Traces, plots and weights are not in it. Records of
older versions have an empty one.
"""

from __future__ import annotations

import json
from pathlib import Path

from gradwire.harness.reading.files import MissingFileError, UnusableFileError, file_digest, read_bytes
from gradwire.harness.reading.structured import parse_json
from gradwire.harness.record.directory import DONE
from gradwire.harness.record.files import write_atomically

SEALED = (
    *("config.yaml", "run.json", "steps.jsonl", "evals.jsonl", "summary.json"),
    *("allreduce.json", "bench.json", "statistics.json", "tables.txt"),
)
"""What a run, or a task that measures, leaves in its directory. Not `network.json`: its last figures come
when the links are taken down, after the run is done."""

REMEDY = "damaged or changed since the run was done; resume=never runs it again"


def mark_done(directory: Path) -> None:
    """Say that the record in `directory` is complete."""
    digests = {
        name: file_digest(directory / name, remedy=REMEDY, inside=directory)
        for name in SEALED
        if (directory / name).exists()
    }
    write_atomically(directory / DONE, json.dumps({"sha256": digests}, indent=1) + "\n")


def check_done(directory: Path) -> None:
    """Raise UnusableFileError unless the files of a record that is done hold what they did then."""
    path = directory / DONE
    content = read_bytes(path, remedy=REMEDY, inside=directory)
    if not content:
        return
    digests = parse_json(content, path, remedy=REMEDY).get("sha256")
    if not isinstance(digests, dict):
        raise UnusableFileError(path, "has no digests of the record's files", REMEDY)
    for name, digest in digests.items():
        try:
            found = file_digest(directory / name, remedy=REMEDY, inside=directory)
        except MissingFileError:
            raise UnusableFileError(
                directory / name, f"is missing, and {DONE} counts on it", REMEDY
            ) from None
        if found != digest:
            raise UnusableFileError(directory / name, f"differs from its digest in {DONE}", REMEDY)
