"""Writes a checkpoint: every process writes its own files, then one process seals them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from gradwire.harness.checkpoint.folder import (
    DONE,
    REMEDY,
    STATE,
    SUFFIX,
    CheckpointState,
    checkpoint_path,
    remove,
    remove_older,
    unfinished_path,
)
from gradwire.harness.files.reading import file_digest, read_text
from gradwire.harness.files.writing import save_tensors, write_atomically, writing
from gradwire.harness.runtime.heartbeat import beat

_DIGEST = ".sha256"

SHARED_S = 60.0
"""Seconds that a shared file system may take until files written on one node are visible on another."""


def write_files(directory: Path, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Writes this process's `parts` (file name without suffix to tensors); returns the number of files.

    Parts without tensors get no file. Raises UnwritableFileError if the disk fails.
    """
    folder = unfinished_path(directory, step)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    present = {name: tensors for name, tensors in parts.items() if tensors}
    for name, tensors in present.items():
        file = folder / f"{name}{SUFFIX}"
        save_tensors(file, {key: tensor.detach().contiguous() for key, tensor in tensors.items()})
        _flush(file)
        write_atomically(folder / f"{name}{_DIGEST}", file_digest(file, remedy=REMEDY, inside=directory))
        beat()
    return len(present)


def seal(
    directory: Path,
    state: CheckpointState,
    num_files: int,
    keep: int | None,
) -> Path:
    """Gives the checkpoint its name, after all processes have written `num_files` files together.

    Keeps the newest `keep` checkpoints of the run (None: all). Only one process may call this. Raises
    RuntimeError if files are missing, which happens when the nodes do not share the run directory.
    """
    folder = unfinished_path(directory, state.step)
    digests = _digests(folder, num_files)
    if len(digests) != num_files:
        raise RuntimeError(
            f"{folder}: {num_files} files were written, {len(digests)} are here; checkpoints need a run "
            "directory that all nodes share (hydra.run.dir=), or train.checkpoint_every=null"
        )
    files = {
        f"{name}{SUFFIX}": read_text(path, remedy=REMEDY, inside=directory) for name, path in digests.items()
    }
    for path in digests.values():
        path.unlink()
    write_atomically(folder / STATE, dataclasses.replace(state, files=files).to_json())
    write_atomically(folder / DONE, file_digest(folder / STATE, remedy=REMEDY, inside=directory) + "\n")
    _flush(folder)
    path = checkpoint_path(directory, state.step)
    if path.exists():
        remove(path)
    os.replace(folder, path)
    _flush(path.parent)
    if keep is not None:
        remove_older(directory, keep)
    return path


def _digests(folder: Path, num_files: int) -> dict[str, Path]:
    """Maps file names to the files and their digests; waits for files that other nodes have written."""
    deadline = time.monotonic() + SHARED_S
    while True:
        found = {path.name.removesuffix(_DIGEST): path for path in sorted(folder.glob(f"*{_DIGEST}"))}
        if len(found) >= num_files or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of files, is on disk."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
