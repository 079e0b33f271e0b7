"""Python's garbage collector, kept out of code that makes many objects and no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Nothing is collected inside; also a decorator.

    Objects go when nobody refers to them, all the same; the collector looks for cycles among all that there
    are, and again when there are some more. Where millions are made it takes as long as the work.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
