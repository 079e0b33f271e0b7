"""Calls that a process makes one after another.

Ranks pair their calls by order. Where two threads of a process call at once, each rank has an order of its
own, and models that are alike would be connected crosswise. So all calls that overlap are refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Call:
    """One call under way. `overlapped`: another one of this process was, too."""

    def __init__(self, what: str) -> None:
        self.what, self.overlapped = what, False

    def refusal(self) -> str | None:
        """Why the call is refused, None if it is not."""
        if not self.overlapped:
            return None
        return (
            "two threads of the process attach models at once, and ranks cannot tell which models belong "
            "together; attach them one after another, in the same order on all ranks"
        )

    def check(self) -> None:
        """Raises ValueError if the call is refused."""
        reason = self.refusal()
        if reason is not None:
            raise ValueError(f"{self.what}: {reason}")


_under_way: list[Call] = []
_lock = threading.Lock()


@contextlib.contextmanager
def calling(what: str) -> Iterator[Call]:
    """The block is a call, which overlaps those of other threads that are under way."""
    call = Call(what)
    with _lock:
        _under_way.append(call)
        if len(_under_way) > 1:
            for each in _under_way:
                each.overlapped = True
    try:
        yield call
    finally:
        with _lock:
            _under_way.remove(call)
