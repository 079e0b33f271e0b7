"""A limit for calls that have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class NoAnswerError(TimeoutError):
    """A call has not returned in time."""


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Returns or raises what `call` does. Raises NoAnswerError if that takes longer.

    A socket whose other end belongs to a stopped process never answers, and torch's store then waits without
    end. So the call has a thread of its own, which is never joined.
    """
    returned, raised = list[Any](), list[BaseException]()

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised.pop()
    if not returned:
        raise NoAnswerError(f"no answer within {seconds:g} s")
    result: Result = returned.pop()
    return result
