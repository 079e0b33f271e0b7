"""Standard output and standard error whose errors never end a command: output that cannot be written is
dropped.

A terminal may lack a character or hang up, the reader of a pipe may go away, the disk of a log may be full.
None of these is a reason to lose a run. Only commands change their process in this way, never the library.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

_is_run, _warns = False, True


def guard_output(*, warns: bool = True) -> None:
    r"""Makes standard output and standard error of this process accept everything. Characters that cannot be
    encoded become escapes such as `\u2013`.

    With `warns` the process reports in a line that its output is lost; ranks leave that to their launcher.
    """
    global _warns
    _warns = warns
    _occupy_closed_descriptors()
    if sys.stdout is sys.__stdout__:  # else it is another program's, such as a notebook's
        sys.stdout = sys.__stdout__ = guarded(sys.stdout, _on_error)  # type: ignore[misc]
    if sys.stderr is sys.__stderr__:
        sys.stderr = sys.__stderr__ = guarded(sys.stderr)  # type: ignore[misc]


def declare_run() -> None:
    """Declares that this command does more than print, so that lost output deserves a warning."""
    global _is_run
    _is_run = True


def output_was_taken() -> bool:
    """True if standard output has accepted all lines so far, or if its reader has closed it after reading
    enough, as `head` does."""
    sys.stdout.flush()
    found = _output(sys.stdout)
    return found is None or found.error is None or found.error.errno == errno.EPIPE


class Output(io.RawIOBase):
    """An open file of this process that never fails. After the system's first error, which is kept in `error`
    and passed to `on_error`, all output is discarded, including that of C code and of processes started
    later."""

    def __init__(self, descriptor: int, on_error: Callable[[OSError], None] | None = None) -> None:
        self._descriptor, self._on_error = descriptor, on_error
        self.name = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Accepts all of the data."""
        whole = memoryview(data).cast("B")
        left = whole
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # a program that shares the terminal has set it so
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._give_up(error)
                break
        return len(whole)

    def _give_up(self, error: OSError) -> None:
        if self.error is not None:  # the null device fails, too
            return
        self.error = error
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._descriptor)
            os.close(null)
        if self._on_error is not None:
            self._on_error(error)


def _on_error(error: OSError) -> None:
    """Reports on standard error that standard output is lost, unless its reader has merely closed it."""
    if not _warns:
        return
    what = f"standard output cannot be written ({error.strerror})"
    if _is_run:
        print(f"warning: {what}: the run continues without its lines", file=sys.stderr, flush=True)
    elif error.errno != errno.EPIPE:
        print(f"error: {what}: send it elsewhere", file=sys.stderr, flush=True)


def guarded(
    stream: io.TextIOWrapper | None, on_error: Callable[[OSError], None] | None = None
) -> io.TextIOWrapper:
    """A stream that never fails, to replace this one; None stands for one that was closed."""
    if stream is None:
        return io.TextIOWrapper(Output(os.open(os.devnull, os.O_WRONLY)), encoding="utf-8")  # type: ignore[type-var]
    if _output(stream) is not None:
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    raw = Output(stream.fileno(), on_error)
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if isinstance(stream.buffer, io.BufferedWriter) else raw,  # type: ignore[type-var]
        encoding=stream.encoding,
        errors="backslashreplace",
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _output(stream: TextIO | None) -> Output | None:
    """The guarded output below a stream; None if the stream is not guarded."""
    buffer = getattr(stream, "buffer", None)
    found = getattr(buffer, "raw", buffer)
    return found if isinstance(found, Output) else None


def _occupy_closed_descriptors() -> None:
    """Opens the null device for standard files that were closed. Otherwise the next file opened would get one
    of their descriptors, and receive the output of C code."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
