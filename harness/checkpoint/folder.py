"""Where checkpoints lie, which of them are whole, and how old and half-written ones go.

`checkpoints/step-00000120/` in the run directory holds safetensors files, `state.json` with their sha256
digests, and DONE with the digest of `state.json`. It is written under a hidden name and renamed when
everything is there, so a folder without the dot is complete unless its disk has damaged it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path

from gradwire.harness.checkpoint.state import CheckpointState

FOLDER, STATE, DONE, SUFFIX = "checkpoints", "state.json", "DONE", ".safetensors"

_NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"\.(old-)?step-\d{8,}")
_ASIDE = re.compile(r"damaged-step-\d{8,}")


class DamagedCheckpointError(ValueError):
    """A checkpoint that cannot be used; the text is one line that names it and what is wrong."""


def checkpoint_path(directory: Path, step: int) -> Path:
    """The checkpoint of run `directory` after `step` steps."""
    return directory / FOLDER / f"step-{step:08d}"


def unfinished_path(directory: Path, step: int) -> Path:
    """Where that checkpoint is written before it gets its name."""
    return directory / FOLDER / f".step-{step:08d}"


def checkpoints(directory: Path) -> list[Path]:
    """All complete checkpoints of a run, the newest first."""
    return sorted(_named(directory, _NAME), key=lambda path: int(path.name[5:]), reverse=True)


def _named(directory: Path, *names: re.Pattern[str]) -> list[Path]:
    """Our own folders among whatever lies there."""
    found = (directory / FOLDER).glob("*")
    return [path for path in found if any(name.fullmatch(path.name) for name in names)]


def verified(path: Path) -> CheckpointState:
    """The state of a checkpoint whose every file has the contents it was written with.

    Raises DamagedCheckpointError, and ValueError where nothing can be said about it: it cannot be read
    now, or code with another idea of checkpoints has written it.
    """
    try:
        text = (path / STATE).read_bytes()
        if hashlib.sha256(text).hexdigest().encode() != (path / DONE).read_bytes().strip():
            raise DamagedCheckpointError(f"{path}: {STATE} differs from the digest in {DONE}")
        state = CheckpointState.from_json(text.decode())
        for name, digest in state.files.items():
            if file_digest(path / name) != digest:
                raise DamagedCheckpointError(f"{path}: {name} differs from its digest in {STATE}")
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path}: {Path(error.filename).name} is missing") from None
    except OSError as error:
        reason = f"{Path(error.filename or path).name}: {error.strerror or error}"
        raise ValueError(
            f"{path} cannot be read ({reason}); try again, or start over with resume=never"
        ) from None
    except KeyError as error:
        raise ValueError(
            f"{path}: {STATE} lacks {error}, other code has written it; run that code, or resume=never"
        ) from None
    return state


def file_digest(file: Path) -> str:
    """sha256 of a file's contents."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a checkpoint; from the first moment on nobody takes what is left of it for whole."""
    hidden = path if path.name.startswith(".") else path.with_name(f".old-{path.name}")
    if path != hidden:
        os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Keep a checkpoint that cannot be used under a name that says so, until the run is done."""
    aside = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    return aside


def remove_unfinished(directory: Path) -> None:
    """Remove what interrupted writes and removals have left."""
    for path in _named(directory, _LEFTOVER):
        remove(path)


def remove_older(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in checkpoints(directory)[keep:]:
        remove(path)


def remove_all(directory: Path) -> None:
    """Remove the checkpoints of a run that needs them no more; other things in their folder stay."""
    for path in _named(directory, _NAME, _LEFTOVER, _ASIDE):
        remove(path)
    with contextlib.suppress(OSError):  # not there, or not empty
        (directory / FOLDER).rmdir()
