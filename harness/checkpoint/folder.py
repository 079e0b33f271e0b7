"""Checkpoint folders: their state, the search for complete ones, and the removal of old and half-written
ones.

`checkpoints/step-00000120/` in the run directory holds safetensors files, `state.json` with their sha256 and
the lengths of the record's row files, and DONE with the sha256 of `state.json`. It is written under a hidden
name and renamed when complete, so a folder without the dot is complete unless the disk has damaged it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gradwire.harness.files.hostile import check_safetensors, read_safetensors
from gradwire.harness.files.reading import (
    InaccessibleFileError,
    MissingFileError,
    UnusableFileError,
    file_digest,
    printable,
    read_bytes,
)
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.typed import made
from gradwire.harness.record.row_file import Extent

REMEDY = "resume=never starts over"

FOLDER, STATE, DONE, SUFFIX = "checkpoints", "state.json", "DONE", ".safetensors"

_NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"\.(old-)?step-\d{8,}")
_ASIDE = re.compile(r"damaged-step-\d{8,}")


@dataclass(frozen=True)
class CheckpointState:
    """Counters and clocks after `step` steps; lists have one entry per rank."""

    step: int
    """Number of optimizer steps done, which is the number of the next one."""
    layout_hash: str
    """Hash of the buckets' layout; a resumed run must have the same."""
    data_hash: str
    """Hash of the training data's description; a resumed run must have the same."""
    train_time_s: list[float]
    """The training clock of each rank."""
    wall_time_s: float
    """Total wall time, including earlier attempts."""
    bytes_by_phase: list[dict[str, int]]
    """Bytes that each rank has sent, by phase."""
    run_id: str
    """The id of its run; other runs never use the checkpoint."""
    rows: dict[str, Extent]
    """The extents of the record's row files at this point, which a resumed run continues."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name to sha256."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> CheckpointState:
        """Reads the text that `to_json` writes; it came from `path`. Raises UnusableFileError."""
        return made(cls, parse_json(content, path, remedy=REMEDY), path, remedy=REMEDY)

    def impossible(self) -> str | None:
        """A description of values that no run can have; None if there are none."""
        if self.step < 0 or not self.train_time_s or len(self.train_time_s) != len(self.bytes_by_phase):
            return (
                f"is of step {self.step}, {len(self.train_time_s)} clocks, {len(self.bytes_by_phase)} ranks"
            )
        return None


class DamagedCheckpointError(ValueError):
    """Raised for a checkpoint that cannot be used; the text is one line that names it and the fault."""


class ForeignCheckpointError(ValueError):
    """Raised for a checkpoint of another run, or of a different step than its name says; the text is one
    line."""


def checkpoint_path(directory: Path, step: int) -> Path:
    """The checkpoint of run `directory` after `step` steps."""
    return directory / FOLDER / f"step-{step:08d}"


def unfinished_path(directory: Path, step: int) -> Path:
    """The path at which that checkpoint is written before it is renamed."""
    return directory / FOLDER / f".step-{step:08d}"


def checkpoints(directory: Path) -> list[Path]:
    """All complete checkpoints of a run, newest first."""
    return sorted(_named(directory, _NAME), key=lambda path: int(path.name[5:]), reverse=True)


def _named(directory: Path, *names: re.Pattern[str]) -> list[Path]:
    """The folders with a checkpoint's name; other files and folders are ignored."""
    found = (directory / FOLDER).glob("*")
    return [path for path in found if any(name.fullmatch(path.name) for name in names)]


def run_of(path: Path) -> Path:
    """The run directory of a checkpoint."""
    return path.parent.parent


def verified(path: Path, run_id: str) -> CheckpointState:
    """Returns the state of a checkpoint of run `run_id` after comparing every file with its digest.

    Raises ForeignCheckpointError for another run's, DamagedCheckpointError, and ValueError if it cannot
    be read now.
    """
    try:
        content, digest = _read(path, STATE), _read(path, DONE)
        if hashlib.sha256(content).hexdigest().encode() != digest.strip():
            raise DamagedCheckpointError(f"{path}: {STATE} differs from the digest in {DONE}")
        state = CheckpointState.from_json(content, path / STATE)
        reason = state.impossible()
        if reason is not None:
            raise DamagedCheckpointError(f"{path}: {STATE} {reason}")
        if state.run_id != run_id or checkpoint_path(run_of(path), state.step) != path:
            whose = f"after step {state.step} of run {printable(state.run_id, 20)}"
            raise ForeignCheckpointError(f"{path} is the checkpoint {whose}, and this is run {run_id}")
        for name, digest_of_file in state.files.items():
            if _digest(path / name) != digest_of_file:
                raise DamagedCheckpointError(f"{path}: {printable(name)} differs from its digest in {STATE}")
    except MissingFileError as error:
        raise DamagedCheckpointError(f"{path}: {error.path.name} is missing") from None
    except InaccessibleFileError as error:
        raise ValueError(
            f"{path}: {error.path.name} {error.problem}; try again, or start over with resume=never"
        ) from None
    except UnusableFileError as error:
        raise DamagedCheckpointError(f"{path}: {printable(error.path.name)} {error.problem}") from None
    return state


def _digest(file: Path) -> str:
    """sha256 of a checkpoint's tensors, after checking that the file has the length given in its header."""
    inside = run_of(file.parent)
    check_safetensors(file, remedy=REMEDY, inside=inside)
    return file_digest(file, remedy=REMEDY, inside=inside, most=file.stat().st_size)


def _read(path: Path, name: str) -> bytes:
    return read_bytes(path / name, remedy=REMEDY, inside=run_of(path))


def remove(path: Path) -> None:
    """Removes a checkpoint. It is renamed first, so that a partly removed one does not count as complete."""
    hidden = path if path.name.startswith(".") else path.with_name(f".old-{path.name}")
    if path != hidden:
        os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def set_aside(path: Path, why: str = "damaged") -> Path:
    """Renames a checkpoint that cannot be used to `<why>-<name>` and keeps it.

    Damaged ones are removed when the run is done. Those of another run are kept, because they may be all that
    is left of it.
    """
    aside = path.with_name(f"{why}-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    return aside


def remove_unfinished(directory: Path) -> None:
    """Removes the remains of interrupted writes and removals."""
    for path in _named(directory, _LEFTOVER):
        remove(path)


def remove_older(directory: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints."""
    for path in checkpoints(directory)[keep:]:
        remove(path)


def remove_all(directory: Path) -> None:
    """Removes the checkpoints of a run that no longer needs them; other files in their folder are kept."""
    for path in _named(directory, _NAME, _LEFTOVER, _ASIDE):
        remove(path)
    with contextlib.suppress(OSError):  # not there, or not empty
        (directory / FOLDER).rmdir()


class CheckpointReader:
    """The state and the parts of one checkpoint; parts are read on request."""

    def __init__(self, path: Path) -> None:
        self.path, file = path, path / STATE
        self.state = CheckpointState.from_json(read_bytes(file, remedy=REMEDY, inside=run_of(path)), file)

    def part(self, name: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors saved under `name`, empty if there are none. Raises UnusableFileError."""
        file = f"{name}{SUFFIX}"
        if file not in self.state.files:
            return {}
        place, inside = self.path / file, run_of(self.path)
        return read_safetensors(place, remedy=REMEDY, inside=inside, device=str(device))[0]
