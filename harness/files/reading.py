"""Opens the files of run directories and of users, and checks their kind, length and encoding.

The harness reads all its files through this package, so that a damaged file costs only one line of output and
limited memory and time. Untrusted files are read by `hostile`.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NoReturn

from gradwire.codecs.regular_file import NoRegularFileError, open_regular

MOST_TEXT = 8 * 2**20
"""The largest size in bytes of a file that is read whole."""

MOST_LINE = 2**20
"""The largest size in bytes of a line in a file that is read line by line."""

MOST_QUOTED = 200
"""The largest number of characters of foreign text that an error quotes."""


class UnusableFileError(ValueError):
    """Raised for a file that cannot be used. The text is one line: its path, what is wrong with it, what to
    do."""

    final = False
    """False: another attempt at the run may find the file intact, or may not need it."""

    def __init__(self, path: str | Path, problem: str, remedy: str) -> None:
        self.path, self.problem, self.remedy = Path(path), printable(problem), remedy
        super().__init__(f"{printable(str(path), 4096)}: {self.problem}; {remedy}")


class MissingFileError(UnusableFileError):
    """The file does not exist."""


class InaccessibleFileError(UnusableFileError):
    """The system does not allow reading the file now; its contents are unknown."""


def printable(text: str, most: int = MOST_QUOTED) -> str:
    """Returns `text` on one line for a terminal: at most `most` characters, with escapes for invisible ones.

    Control characters can control a terminal, and direction marks make a line look like a different one.
    """
    shown = "".join(_shown(character) for character in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _shown(character: str) -> str:
    if character in "\t\n\r\v\f":
        return " "
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return ascii(character)[1:-1] if hidden else character


def open_file(
    path: str | Path, *, remedy: str, inside: Path | None = None, most: int | None = None
) -> BufferedReader:
    """Opens a regular file of at most `most` bytes (None: any) for reading bytes; raises UnusableFileError.

    `inside` is a directory below which no link is followed; with None links are allowed, because users may
    use them in their own paths. Pipes, devices and files of /proc are refused: they could block the reader or
    have no end. `remedy` says what to do and ends every error.
    """
    path = Path(path)
    if inside is not None:
        refuse_links(path, inside, remedy=remedy)
    with system_errors(path, remedy):
        file = open_regular(path, follow=inside is None)
    if most is not None and os.fstat(file.fileno()).st_size > most:
        file.close()
        raise UnusableFileError(path, _too_long(most), remedy)
    return file


def _too_long(most: int | None) -> str:
    return f"is longer than {amount(most or 0)}, the most that is read"


def refuse_links(path: Path, inside: Path, *, remedy: str) -> None:
    """Raises UnusableFileError if `path` leaves the directory `inside`, or is or passes through a link below
    it."""
    below = path.relative_to(inside) if path.is_relative_to(inside) else None
    if below is None or ".." in below.parts:
        raise UnusableFileError(path, f"lies outside of {inside}", remedy)
    step = inside
    for part in below.parts:
        step = step / part
        if step.is_symlink():
            raise UnusableFileError(step, "is a link, and none is followed out of a run directory", remedy)


def read_bytes(path: str | Path, *, remedy: str, inside: Path | None = None, most: int = MOST_TEXT) -> bytes:
    """The contents of a file of at most `most` bytes; raises as `open_file` does."""
    with open_file(path, remedy=remedy, inside=inside, most=most) as file, system_errors(Path(path), remedy):
        content = file.read(most + 1)
    if len(content) > most:  # has grown since, or is no file whose length the system knows
        raise UnusableFileError(path, _too_long(most), remedy)
    return content


def read_text(path: str | Path, *, remedy: str, inside: Path | None = None, most: int = MOST_TEXT) -> str:
    """The UTF-8 text of a file of at most `most` bytes; raises as `open_file` does."""
    return decoded(read_bytes(path, remedy=remedy, inside=inside, most=most), path, remedy)


def decoded(content: bytes, path: str | Path, remedy: str) -> str:
    """Decodes UTF-8 bytes of the file at `path`; raises UnusableFileError."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text ({error.reason} at byte {error.start})"
        raise UnusableFileError(path, problem, remedy) from None


def read_lines(
    path: str | Path,
    *,
    remedy: str,
    inside: Path | None = None,
    most: int = MOST_LINE,
    most_in_all: int | None = None,
) -> Iterator[bytes]:
    """Yields the lines of a file, with their line feeds; refuses a line of more than `most` bytes.

    Also refuses a file of more than `most_in_all` bytes. The last line has no line feed if its writer was
    interrupted. Raises as `open_file` does.
    """
    with open_file(path, remedy=remedy, inside=inside, most=most_in_all) as file:
        number = 0
        while True:
            with system_errors(Path(path), remedy):
                line = file.readline(most + 1)
            if not line:
                return
            number += 1
            if len(line) > most:
                raise UnusableFileError(path, f"line {number} is longer than {amount(most)}", remedy)
            yield line


def file_digest(path: str | Path, *, remedy: str, inside: Path | None = None, most: int | None = None) -> str:
    """sha256 of the contents of a file of at most `most` bytes, in hexadecimal digits; raises as `open_file`
    does."""
    with open_file(path, remedy=remedy, inside=inside, most=most) as file, system_errors(Path(path), remedy):
        return hashlib.file_digest(file, "sha256").hexdigest()


def amount(num_bytes: int) -> str:
    """A number of bytes in words."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"


MOST_DEPTH = 64
"""The largest depth of nested folders that are searched."""


def folders_in(root: Path) -> Iterator[Path]:
    """Yields `root` and the folders below it down to `MOST_DEPTH`, in order, without hidden folders and
    links."""
    waiting = [(root, 0)]
    while waiting:
        place, depth = waiting.pop()
        yield place
        if depth < MOST_DEPTH:
            below = [Path(each.path) for each in os.scandir(place) if each.is_dir(follow_symlinks=False)]
            waiting += [(each, depth + 1) for each in sorted(below, reverse=True) if each.name[0] != "."]


@contextmanager
def system_errors(path: Path, remedy: str) -> Iterator[None]:
    """Converts errors of the system to one line with the path and the remedy."""
    try:
        yield
    except OSError as error:
        _refused(path, error, remedy)
    except ValueError as error:
        if isinstance(error, UnusableFileError):
            raise
        raise UnusableFileError(path, f"is not a path ({error})", remedy) from None


def _refused(path: Path, error: OSError, remedy: str) -> NoReturn:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise MissingFileError(path, "is not there", remedy) from None
    if isinstance(error, NoRegularFileError):
        raise UnusableFileError(path, str(error), remedy) from None
    raise InaccessibleFileError(path, f"cannot be read ({error.strerror or error})", remedy) from None
