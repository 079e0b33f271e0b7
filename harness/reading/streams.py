"""Compressed streams and archives, which a few kilobytes can make gigabytes of: bounded as they unfold."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gradwire.harness.reading.files import UnusableFileError, amount

FLOOR = 64 * 2**20
"""Bytes that any file may unfold to, however short it is."""

TEXT_RATIO = 200
"""Bytes of text from a byte of a compressed file; logs that repeat themselves reach 100, bombs 1,000."""

STEP = 2**20
"""Bytes that are unfolded at once."""


def most_unfolded(size: int, ratio: int) -> int:
    """Bytes that a file of `size` bytes may unfold to, at `ratio` from each."""
    return max(FLOOR, size * ratio)


class BoundedStream(io.RawIOBase):
    """A stream that ends in UnusableFileError once it has given more than `most` bytes.

    `stream` is a decompressor's readable file object, of the file at `path`; wrap this in
    `io.BufferedReader` and `io.TextIOWrapper` to read text. Closing it closes `stream`.
    """

    def __init__(self, stream: IO[bytes] | Any, path: str | Path, *, most: int, remedy: str) -> None:
        self._stream, self._path, self._left, self._most = stream, Path(path), most, most
        self._remedy = remedy

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._stream.read(min(len(view), STEP))
        self._left -= len(chunk)
        if self._left < 0:
            problem = f"unfolds to more than {amount(self._most)}, far more than its size on disk allows"
            raise UnusableFileError(self._path, problem, self._remedy)
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def bounded_lines(handle: io.TextIOBase | Any, path: str | Path, *, most: int, remedy: str) -> Iterator[str]:
    """The lines of text of an open file, one at a time, with their line feeds; UnusableFileError for one of
    more than `most` characters."""
    number = 0
    while line := handle.readline(most + 1):
        number += 1
        if len(line) > most:
            raise UnusableFileError(path, f"line {number} has more than {most} characters", remedy)
        yield line
