"""Settings of the garbage collector, and of whether freed memory is returned to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 2**31 - 1


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory, including large blocks, instead of returning it to the system.

    A bucket's sums and its mean are tensors of tens of megabytes. If they were mapped anew in every round,
    their pages would cost more than the codec's arithmetic. Without glibc nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGE)
    mallopt(M_TRIM_THRESHOLD, LARGE)
    mallopt(M_ARENA_MAX, 1)  # those of other threads cannot hold large blocks


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses garbage collection inside; also a decorator.

    Objects without references are still freed at once; only the search for cycles is paused. It repeatedly
    scans all objects, which takes as long as the work itself where millions of objects are made.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
