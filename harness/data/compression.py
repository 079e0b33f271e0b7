"""Files as text, whether compressed or not."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from ..reading.files import UnusableFileError, amount
from ..reading.streams import STEP, TEXT_RATIO, most_unfolded

REMEDY = "if it is what it should be, decompress it and give that file"


def decompress_zstd(file: Any, mode: str = "rb", **options: Any) -> BinaryIO:
    """The contents of a zstd-compressed file; pyarrow has what Python's library lacks before 3.14."""
    import pyarrow

    assert mode.startswith("r"), mode
    return cast(BinaryIO, pyarrow.CompressedInputStream(file, "zstd"))


OPENERS: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": decompress_zstd,
}

CORRUPT = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged file raises."""


def open_text(path: Path) -> TextIO:
    """The file's text, decompressed by its suffix; line ends become line feeds.

    Reading raises UnusableFileError once a compressed file has unfolded to far more than text does.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        return path.open("rt", encoding="utf-8-sig", newline=None)
    return io.TextIOWrapper(io.BufferedReader(_Unfolding(path, opener)), encoding="utf-8-sig", newline=None)


class _Unfolding(io.RawIOBase):
    """What a compressed file unfolds to, as long as that is in proportion to what has been read of it.

    So a bomb is noticed after `FLOOR` bytes, however large it is.
    """

    def __init__(self, path: Path, opener: Callable[..., Any]) -> None:
        self._path, self._file, self._given = path, path.open("rb"), 0
        self._unfolded = opener(self._file, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._unfolded.read(min(len(view), STEP))
        self._given += len(chunk)
        if self._given > (most := most_unfolded(self._file.tell(), TEXT_RATIO)):
            problem = f"unfolds to more than {amount(most)} from {amount(self._file.tell())}, as no text does"
            raise UnusableFileError(self._path, problem, REMEDY)
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._unfolded.close()
            self._file.close()
        super().close()
