"""Compressed blocks of lines: a file of gzip members, each of them whole lines and complete in itself.

`zcat` shows the lines. A block is appended in one go; one that a crash has cut off is left out. Whoever reads
holds one block at a time and takes no more from a file than it can honestly hold: a block has at most
`MOST_BYTES` and all together no more than `MOST_EXPANSION` times what they take on disk.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

LEVEL = 3
"""zlib's level: 6 makes traces 5 % smaller and takes twice as long."""
BLOCK_BYTES = 2**20
"""Lines go into one block up to this size, uncompressed."""
MOST_BYTES = 2**25
MOST_EXPANSION = 100
CHUNK_BYTES = 2**16
"""Small: what is behind a block in a chunk is copied once for each block."""


class Block(NamedTuple):
    """Whole lines, and the bytes they are stored as."""

    lines: list[bytes]
    stored: bytes


class DamagedBlockError(ValueError):
    """A block that cannot be read; the text says what is wrong."""


def compressed(lines: Iterable[bytes]) -> bytes:
    """Lines as a block. Raises OSError (EFBIG) for more than a reader takes."""
    text = b"".join(lines)
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return gzip.compress(text, LEVEL, mtime=0)


def append(path: Path, stored: bytes) -> int:
    """Add blocks to a file, which may not be a link; returns its size. An OSError leaves it as it was."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    try:
        size, rest = os.fstat(descriptor).st_size, memoryview(stored)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        return size + len(stored)
    finally:
        os.close(descriptor)


def blocks(file: BinaryIO) -> Iterator[Block]:
    """The blocks of an open file in their order. Raises DamagedBlockError."""
    taken = given = 0
    chunk = file.read(CHUNK_BYTES)
    while chunk:
        inflate, stored, text = zlib.decompressobj(wbits=31), bytearray(), bytearray()
        while not inflate.eof and chunk:
            try:
                text += inflate.decompress(chunk, MOST_BYTES + 1 - len(text))
            except zlib.error as error:
                raise DamagedBlockError(str(error)) from None
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            stored += chunk[: len(chunk) - len(rest)]
            if len(text) > MOST_BYTES or len(stored) > MOST_BYTES:
                raise DamagedBlockError(f"a block holds more than {MOST_BYTES} bytes")
            chunk = rest or file.read(CHUNK_BYTES)
        if not inflate.eof:
            return  # cut off by a crash
        if not text.endswith(b"\n"):
            raise DamagedBlockError("a block holds no whole lines")
        taken, given = taken + len(stored), given + len(text)
        if given > MOST_BYTES + MOST_EXPANSION * taken:
            raise DamagedBlockError(f"it expands to more than {MOST_EXPANSION} times its size")
        yield Block(bytes(text).splitlines(keepends=True), bytes(stored))


def rewrite(path: Path, keep: Callable[[list[bytes]], list[bytes]]) -> int:
    """Replace a file, in one go, by what `keep` leaves of each block's lines; returns its size in bytes.

    Blocks of which all or nothing is left are not compressed again. What is behind a damaged block is left
    out. `path` is no link. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as file, path.open("rb") as old, contextlib.suppress(DamagedBlockError):
            for block in blocks(old):
                if kept := keep(block.lines):
                    file.write(block.stored if len(kept) == len(block.lines) else compressed(kept))
        size = temporary.stat().st_size
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return size
