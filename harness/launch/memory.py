"""How a process keeps the memory of tensors that come and go in every step."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 2**31 - 1


def keep_freed_memory() -> None:
    """Have glibc hand out freed memory again instead of returning it to the system, large blocks included.

    A bucket's sums and its mean are tensors of tens of megabytes. Mapped anew in every round, their pages
    cost more than the codec's arithmetic on them. Where there is no glibc nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGE)
    mallopt(M_TRIM_THRESHOLD, LARGE)
    mallopt(M_ARENA_MAX, 1)  # those of other threads cannot hold large blocks
