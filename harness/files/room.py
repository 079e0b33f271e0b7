"""Free space on a disk, compared with what is about to be written. Quotas are not known: only free space
is."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

CLOSE = 0.8
"""The share of the free space from which on a line warns."""

NOTED = 1 << 20
"""Bytes that are worth a warning: less is written by anything."""


def size_text(num_bytes: float) -> str:
    """A size such as `1.5 GiB`, with one decimal unless that is 0."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = next((power for power in range(4) if num_bytes < 1024 ** (power + 1)), 4)
    return f"{num_bytes / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"


def free_bytes(folder: Path) -> float:
    """Free space of the disk that holds `folder`, or will hold it: that of the nearest folder above it.

    Infinite where the system knows of none, as below /proc: who writes there is told otherwise.
    """
    place = folder.expanduser().absolute()
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    return usage.free if usage.total else math.inf


def check_room(folder: Path, what: str, least: float, most: float, remedy: str) -> str | None:
    """Raises ValueError, in one line, if `least` bytes do not fit into `folder`; returns a line that warns if
    `most` may not, else None.

    `what` writes them; `remedy` says how to write less, or elsewhere.
    """
    try:
        free = free_bytes(folder)
    except OSError:  # the writer will report it
        return None
    if least > free:
        raise ValueError(
            f"{what} writes at least {size_text(least)}, and {folder} has {size_text(free)} free; {remedy}"
        )
    if most > max(CLOSE * free, NOTED):
        return (
            f"note: {what} may write {size_text(most)}, and {folder} has {size_text(free)} free; if that is "
            f"too little, {remedy}"
        )
    return None
