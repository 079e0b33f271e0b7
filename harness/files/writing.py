"""Atomic writing of files, with the permissions of new files; checks free space beforehand.

Only the free space of a disk is known, not quotas.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from torch import Tensor


_CODE = re.compile(r"\(os error (\d+)\)")
"""The format in which libraries written in Rust report the system's error."""

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space within your quota",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "correct its permissions",
}

_OF_THE_DISK = (*_REMEDIES, errno.EIO)
"""Errors of the system that a user fixes at the disk, a quota or permissions, whatever the file."""


class UnwritableFileError(OSError):
    """Raised if a file cannot be written. The text is one line for commands and scripts: the path, the
    reason, what to do."""

    def __init__(self, path: Path, reason: str, code: int | None = None) -> None:
        super().__init__(code, reason)
        remedy = _REMEDIES.get(code or 0, "mend that")
        self.text = f"{path} cannot be written ({reason}): {remedy}, then start again"

    def __str__(self) -> str:
        return self.text


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UnwritableFileError about `path` if the system, or a library that writes, fails in the block.

    Other errors, and errors about files elsewhere, pass through.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, UnwritableFileError) or not _is_about(path, error):
            raise
        raise UnwritableFileError(path, error.strerror or str(error), error.errno) from error
    except Exception as error:
        found = _CODE.search(str(error))
        if found is None:
            raise
        code = int(found[1])
        raise UnwritableFileError(path, os.strerror(code), code) from error


def is_of_the_disk(error: object) -> bool:
    """Returns whether an error comes from the disk, and not from a bug or the network, which Python also
    reports as OSError."""
    return isinstance(error, UnwritableFileError) or (
        isinstance(error, OSError) and error.errno in _OF_THE_DISK
    )


def _is_about(path: Path, error: OSError) -> bool:
    """Returns whether an error met in writing `path` concerns it, its folders or the files in them."""
    if isinstance(error, ConnectionError) or type(error).__module__ != "builtins":  # the network's
        return False
    if not isinstance(error.filename, str):
        return error.errno is not None or type(error) is OSError  # as NumPy says that a write was cut short
    named, folder = Path(error.filename).absolute(), path.absolute().parent
    return named.is_relative_to(folder) or folder.is_relative_to(named)


def as_new_files(*paths: Path) -> None:
    """Gives files in one folder the permissions that new files have there.

    Only one process may call this. It creates a new file next to the first one to see its permissions. That
    file's name is derived from the first one's, so that the next save removes it if the process was killed.
    """
    new = paths[0].with_name(f".{paths[0].name}.new")
    new.unlink(missing_ok=True)
    try:
        new.touch(exist_ok=False)
        mode = new.stat().st_mode & 0o777
    finally:
        new.unlink(missing_ok=True)
    for path in paths:
        if path.stat().st_mode & 0o777 != mode:  # where all files have one mode, none can be set
            path.chmod(mode)


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a `.safetensors` file with the permissions of new files; the package itself would make it
    readable only for its owner. Equal contents give equal files. Neither atomic nor flushed. Raises
    UnwritableFileError."""
    from safetensors.torch import save_file

    with writing(path):
        save_file(dict(tensors), path, metadata=dict(metadata) if metadata is not None else None)
        if metadata is not None and len(metadata) > 1:
            _sort_metadata(path)
        as_new_files(path)


def _sort_metadata(path: Path) -> None:
    """Sorts the metadata of a `.safetensors` file, which the package writes in an order of chance."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length, "the package writes JSON otherwise"
        file.seek(8)
        file.write(text.ljust(length))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for bytes that replaces `path` at the end of the block: a reader sees the old file or the
    new one. Nothing changes if the block raises. Raises UnwritableFileError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            with temporary.open("wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces `path` by a file holding `content`, atomically."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as handle:
        handle.write(data)


CLOSE = 0.8
"""The share of the free space from which on a warning is printed."""

NOTED = 1 << 20
"""The smallest number of bytes that deserves a warning."""


def size_text(num_bytes: float) -> str:
    """A size such as `1.5 GiB`, with one decimal unless that is 0."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = next((power for power in range(4) if num_bytes < 1024 ** (power + 1)), 4)
    return f"{num_bytes / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"


def free_bytes(folder: Path) -> float:
    """Free space of the disk that holds, or will hold, `folder`: that of the nearest existing folder above
    it.

    Infinite if the system does not report any, as below /proc, where writing fails for other reasons.
    """
    place = folder.expanduser().absolute()
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    return usage.free if usage.total else math.inf


def check_room(folder: Path, what: str, least: float, most: float, remedy: str) -> str | None:
    """Raises ValueError, in one line, if `least` bytes do not fit into `folder`; returns a warning if `most`
    bytes may not, else None.

    `what` names the writer; `remedy` says how to write less, or elsewhere.
    """
    try:
        free = free_bytes(folder)
    except OSError:  # the writer will report it
        return None
    if least > free:
        raise ValueError(
            f"{what} writes at least {size_text(least)}, and {folder} has {size_text(free)} free; {remedy}"
        )
    if most > max(CLOSE * free, NOTED):
        return (
            f"note: {what} may write {size_text(most)}, and {folder} has {size_text(free)} free; if that is "
            f"too little, {remedy}"
        )
    return None
