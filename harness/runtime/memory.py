"""Settings of the garbage collector, and of whether freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 2**31 - 1


def keep_freed_memory() -> None:
    """Makes glibc hand out freed memory again, large blocks included, instead of returning it to the system.

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

    Objects without references go all the same; the collector looks for cycles among all that there
    are, and again when there are some more. Where millions are made it takes as long as the work.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
