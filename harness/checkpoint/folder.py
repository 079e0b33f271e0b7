"""Checkpoints: what they say of a run, which of them are complete, and how old and half-written ones go.

`checkpoints/step-00000120/` in the run directory holds safetensors files, `state.json` with their sha256 and
with how far the record's rows went, and DONE with the sha256 of `state.json`. It is written under a hidden
name and renamed when everything is there, so a folder without the dot is complete unless its disk has damaged
it.
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
    """Optimizer steps done, the number of the next one."""
    layout_hash: str
    """Hash of the buckets' layout; a resumed run must have the same."""
    data_hash: str
    """Hash of the training data's description; a resumed run must have the same."""
    train_time_s: list[float]
    """The training clock of each rank."""
    wall_time_s: float
    """Wall time in all, earlier attempts included."""
    bytes_by_phase: list[dict[str, int]]
    """Bytes that each rank has sent, by phase."""
    run_id: str
    """The run it belongs to; another run's checkpoint is never used."""
    rows: dict[str, Extent]
    """The record's files of rows up to here, which a resumed run continues."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name to sha256."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> CheckpointState:
        """Reads the text that `to_json` writes; it came from `path`. Raises UnusableFileError."""
        return made(cls, parse_json(content, path, remedy=REMEDY), path, remedy=REMEDY)

    def impossible(self) -> str | None:
        """Says what in it is impossible for any run."""
        if self.step < 0 or not self.train_time_s or len(self.train_time_s) != len(self.bytes_by_phase):
            return (
                f"is of step {self.step}, {len(self.train_time_s)} clocks, {len(self.bytes_by_phase)} ranks"
            )
        return None


class DamagedCheckpointError(ValueError):
    """A checkpoint that cannot be used; the text is one line that names it and what is wrong."""


class ForeignCheckpointError(ValueError):
    """A checkpoint that another run has written, or that is of another step than its name says; one line."""


def checkpoint_path(directory: Path, step: int) -> Path:
    """The checkpoint of run `directory` after `step` steps."""
    return directory / FOLDER / f"step-{step:08d}"


def unfinished_path(directory: Path, step: int) -> Path:
    """The path at which that checkpoint is written before it gets its name."""
    return directory / FOLDER / f".step-{step:08d}"


def checkpoints(directory: Path) -> list[Path]:
    """All complete checkpoints of a run, newest first."""
    return sorted(_named(directory, _NAME), key=lambda path: int(path.name[5:]), reverse=True)


def _named(directory: Path, *names: re.Pattern[str]) -> list[Path]:
    """The folders with a checkpoint's name, ignoring whatever else lies there."""
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
    """sha256 of a checkpoint's tensors, after checking that the file is as long as its header says."""
    inside = run_of(file.parent)
    check_safetensors(file, remedy=REMEDY, inside=inside)
    return file_digest(file, remedy=REMEDY, inside=inside, most=file.stat().st_size)


def _read(path: Path, name: str) -> bytes:
    return read_bytes(path / name, remedy=REMEDY, inside=run_of(path))


def remove(path: Path) -> None:
    """Removes a checkpoint; from the first moment on, the rest of it does not count as complete."""
    hidden = path if path.name.startswith(".") else path.with_name(f".old-{path.name}")
    if path != hidden:
        os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def set_aside(path: Path, why: str = "damaged") -> Path:
    """Renames a checkpoint that cannot be used to `<why>-<name>` and keeps it.

    Damaged ones are removed when the run is done. Another run's stay: they may be all that is left of it.
    """
    aside = path.with_name(f"{why}-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    return aside


def remove_unfinished(directory: Path) -> None:
    """Removes what interrupted writes and removals have left."""
    for path in _named(directory, _LEFTOVER):
        remove(path)


def remove_older(directory: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints."""
    for path in checkpoints(directory)[keep:]:
        remove(path)


def remove_all(directory: Path) -> None:
    """Removes the checkpoints of a run that no longer needs them; other things in their folder stay."""
    for path in _named(directory, _NAME, _LEFTOVER, _ASIDE):
        remove(path)
    with contextlib.suppress(OSError):  # not there, or not empty
        (directory / FOLDER).rmdir()


class CheckpointReader:
    """The state and the parts of one checkpoint; parts are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path, file = path, path / STATE
        self.state = CheckpointState.from_json(read_bytes(file, remedy=REMEDY, inside=run_of(path)), file)

    def part(self, name: str, device: torch.device) -> dict[str, Tensor]:
        """The tensors written under `name`, empty if it had none. Raises UnusableFileError."""
        file = f"{name}{SUFFIX}"
        if file not in self.state.files:
            return {}
        place, inside = self.path / file, run_of(self.path)
        return read_safetensors(place, remedy=REMEDY, inside=inside, device=str(device))[0]
