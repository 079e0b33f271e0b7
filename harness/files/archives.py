"""Zip archives that others made: read entry by entry, of bounded length, and never unpacked to disk."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gradwire.harness.files.reading import UnusableFileError, amount, open_file, printable, system_errors
from gradwire.harness.files.streams import TEXT_RATIO, most_unfolded

MOST_DIRECTORY = 32 * 2**20
"""Most bytes of an archive's list of entries, which is read whole: some 300,000 entries."""

END, END_BYTES, MOST_COMMENT = b"PK\x05\x06", 22, 65_535
"""How the record at an archive's end begins, its length, and what may follow it."""


class Archive:
    """The files in the zip at `path`, by name. Failures are UnusableFileErrors that end in `remedy`."""

    def __init__(self, path: Path, *, remedy: str) -> None:
        self.path, self._remedy = path, remedy
        self._file = open_file(path, remedy=remedy)
        try:
            with self._damage():
                self._check_end()
                self._zip = zipfile.ZipFile(self._file)
                entries = [entry for entry in self._zip.infolist() if not entry.is_dir()]
            self._entries = {entry.filename: entry for entry in entries}
            self._check_unfolding()
        except UnusableFileError:
            self._file.close()
            raise

    def names(self) -> Iterator[str]:
        """The names of all files, as the archive has them: they may be anything, and are no paths of ours."""
        yield from self._entries

    def read(self, name: str, most: int) -> bytes:
        """The contents of one file, of at most `most` bytes."""
        entry = self._entries[name]
        shown = printable(name, 80)
        if entry.file_size > most:
            raise self._refusal(f"{shown} is longer than {amount(most)}, the most that is read")
        with self._damage(shown), self._zip.open(entry) as handle:
            return handle.read(most + 1)[: entry.file_size]

    def close(self) -> None:
        self._file.close()

    def _check_end(self) -> None:
        """Refuses a list of entries that takes much memory before it is read."""
        size = self._file.seek(0, 2)
        self._file.seek(max(0, size - END_BYTES - MOST_COMMENT))
        tail = self._file.read()
        last = tail[-END_BYTES:]
        end = last if last.startswith(END) else tail[tail.rfind(END) :][:END_BYTES] if END in tail else b""
        if len(end) == END_BYTES and int.from_bytes(end[12:16], "little") > MOST_DIRECTORY:
            raise self._refusal(f"has a list of entries longer than {amount(MOST_DIRECTORY)}")
        self._file.seek(0)

    def _check_unfolding(self) -> None:
        size, total = _size(self._file), sum(entry.file_size for entry in self._entries.values())
        if total > (most := most_unfolded(size, TEXT_RATIO)):
            raise self._refusal(f"expands to {amount(total)} from {amount(size)}, more than {amount(most)}")

    @contextmanager
    def _damage(self, name: str = "") -> Iterator[None]:
        what = f"{name} in it " if name else ""
        try:
            with system_errors(self.path, self._remedy):
                yield
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise self._refusal(f"{what}cannot be read ({error})") from None

    def _refusal(self, problem: str) -> UnusableFileError:
        return UnusableFileError(self.path, problem, self._remedy)


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)
