"""Reads files as text, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from gradwire.harness.files.streams import BoundedStream

REMEDY = "if it is what it should be, decompress it and give that file"


def decompress_zstd(file: Any, mode: str = "rb", **options: Any) -> BinaryIO:
    """Decompresses a file with pyarrow, because Python's library has no zstd before 3.14."""
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
"""The errors that reading a damaged file raises."""


def open_text(path: Path) -> TextIO:
    """Opens the file's text, decompressed according to its suffix; line ends become line feeds.

    Reading raises UnusableFileError when a compressed file expands far more than text does.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        return path.open("rt", encoding="utf-8-sig", newline=None)
    stream = BoundedStream(path, path.open("rb"), opener, remedy=REMEDY)
    return io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline=None)
