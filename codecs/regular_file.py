"""Opening of files that have an end: reading a pipe would block, reading a device might never end."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path


class NoRegularFileError(OSError):
    """Something that is no file of a known length; the text says what."""


def open_regular(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """Opens a regular file for reading bytes, at the end of a link only if it may `follow` one.

    Raises OSError as `open` does, and NoRegularFileError for pipes, devices and what the system makes up as
    it is read, such as files of /proc: these have no length.
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
    """True if a file that the system calls empty has contents, or blocks its readers."""
    if os.fstat(descriptor).st_size:
        return False
    try:
        found = os.pread(descriptor, 1, 0)
    except OSError:
        return True
    return bool(found) and not os.fstat(descriptor).st_size  # it may just have been written
