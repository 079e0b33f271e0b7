"""Opening regular files only: reading a pipe would block, and reading a device might never end."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path


class NoRegularFileError(OSError):
    """Raised for something that is not a regular file; the text says what it is."""


def open_regular(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """Opens a regular file for reading bytes; a symbolic link is only followed if `follow`.

    Raises OSError as `open` does, and NoRegularFileError for pipes, devices and files that the system
    generates on reading, such as those of /proc, whose length is unknown.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise NoRegularFileError("is a folder")
        if not stat.S_ISREG(mode):
            raise NoRegularFileError("is not a regular file")
        if _is_made_up(descriptor):
            raise NoRegularFileError("is a file without a length, as those of /proc are")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _is_made_up(descriptor: int) -> bool:
    """True if a file whose reported size is 0 has contents, or blocks its readers."""
    if os.fstat(descriptor).st_size:
        return False
    try:
        found = os.pread(descriptor, 1, 0)
    except OSError:
        return True
    return bool(found) and not os.fstat(descriptor).st_size  # it may just have been written
