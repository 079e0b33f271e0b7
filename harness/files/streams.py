"""Compressed streams and archives, which a few kilobytes can make gigabytes of: bounded as they expand."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from gradwire.harness.files.reading import UnusableFileError, amount

FLOOR = 16 * 2**20
"""Bytes that any compressed text may expand to, however short it is; as short lines these take 20 times
that in memory."""

TEXT_RATIO = 200
"""Most bytes of text per byte of a compressed file. Repetitive logs reach 100, bombs 1,000."""

STEP = 2**20
"""Bytes that are expanded at a time."""


def most_unfolded(size: int, ratio: int, floor: int | None = None) -> int:
    """Bytes that a file of `size` bytes may expand to, at `ratio` from each; any file may to `floor`
    (None: `FLOOR`)."""
    return max(FLOOR if floor is None else floor, size * ratio)


class BoundedStream(io.RawIOBase):
    """What a compressed file expands to, as long as that is in proportion to what has been read of it.

    So a bomb is noticed after `FLOOR` bytes, however large it is: reading then raises UnusableFileError.
    `file` is open at `path`, `opener` makes a decompressor's file object of it; wrap this in
    `io.BufferedReader` and `io.TextIOWrapper` to read text. Closing it closes both.
    """

    def __init__(self, path: Path, file: BinaryIO, opener: Callable[..., Any], *, remedy: str) -> None:
        self._path, self._file, self._remedy, self._given = path, file, remedy, 0
        self._unfolded = opener(file, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._unfolded.read(min(len(view), STEP))
        self._given += len(chunk)
        if self._given > (most := most_unfolded(self._file.tell(), TEXT_RATIO)):
            problem = f"expands to more than {amount(most)} from {amount(self._file.tell())}, as no text does"
            raise UnusableFileError(self._path, problem, self._remedy)
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._unfolded.close()
            self._file.close()
        super().close()
