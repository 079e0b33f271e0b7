"""Links in a run directory, which may come from elsewhere: none is followed out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwire.harness.reading.files import UnusableFileError
from gradwire.harness.record.directory import DONE, FAILED, TRACEBACKS
from gradwire.harness.record.seal import SEALED

CHECKPOINTS = "checkpoints"

FOLDERS = (CHECKPOINTS, "checkpoint", "trace", "plots", "timeline", "gradients", "wandb")
"""What a run, or a task about it, writes to in its directory."""


def refuse_links_in(directory: Path) -> None:
    """Raise UnusableFileError if something that a run reads or writes in its `directory` is a link.

    What is written through one would change files outside. Other things there are the user's own.
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
