"""Compressed text: gzip with equal bytes for equal text, and read back within a limit.

A little file can hold gigabytes of zeros, so that no more than the limit is ever unpacked.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from gradwire.harness.files.reading import MOST_TEXT, UnusableFileError, amount, decoded, read_bytes

ENDING = ".gz"

LEVEL = 9

_GZIP = 31
"""Window bits of zlib for a gzip header and checksum."""


def compressed(text: str) -> bytes:
    """UTF-8 `text` as gzip, without a name or a time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=buffer, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def read_compressed(
    path: str | Path, *, remedy: str, inside: Path | None = None, most: int = MOST_TEXT
) -> str:
    """The UTF-8 text in a gzip file, of which at most `most` bytes are unpacked.

    Raises UnusableFileError for a longer one, one that is cut off, changed or no gzip, and as `open_file`
    does.
    """
    packed = read_bytes(path, remedy=remedy, inside=inside, most=most)
    unpacker = zlib.decompressobj(_GZIP)
    try:
        content = unpacker.decompress(packed, most + 1)
    except zlib.error as error:
        raise UnusableFileError(path, f"is not a sound gzip file ({error})", remedy) from None
    if len(content) > most:
        raise UnusableFileError(path, f"unpacks to more than {amount(most)}, the most that is read", remedy)
    if not unpacker.eof:
        raise UnusableFileError(path, "is not a sound gzip file (it is cut off)", remedy)
    if unpacker.unused_data:
        raise UnusableFileError(path, "is not a sound gzip file (something follows its end)", remedy)
    return decoded(content, path, remedy)
