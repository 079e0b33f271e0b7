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


def _open_zstd(path: Path, mode: str, **options: Any) -> TextIO:
    import pyarrow

    assert mode == "rt"
    return io.TextIOWrapper(decompress_zstd(pyarrow.OSFile(str(path))), **options)


def decompress_zstd(file: Any, mode: str = "rb", **options: Any) -> BinaryIO:
    """The contents of a zstd-compressed file; pyarrow has what Python's library lacks before 3.14."""
    import pyarrow

    assert mode.startswith("r"), mode
    return cast(BinaryIO, pyarrow.CompressedInputStream(file, "zstd"))


OPENERS: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}

CORRUPT = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged file raises."""


def open_text(path: Path) -> TextIO:
    """The file's text, decompressed by its suffix; line ends become line feeds."""
    opener = OPENERS.get(path.suffix.lower(), open)
    handle: TextIO = opener(path, "rt", encoding="utf-8-sig", newline=None)
    return handle
