"""Ctrl-C while a command starts, and its recognition in errors of interrupted code.

Imports and the composition of the configuration take seconds. During that time compiled modules, class hooks
and OmegaConf may convert a KeyboardInterrupt to errors of their own, or lose it. Nothing needs to be cleaned
up yet, so the process simply ends.
"""

from __future__ import annotations

import os
import signal


def end_on_interrupt() -> None:
    """Makes Ctrl-C end this process in one line from now on, unless another handler or SIG_IGN is
    installed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, because from now on there is something to clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_interrupt(error: BaseException) -> bool:
    """True if an error originates in a KeyboardInterrupt."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        link = link.__cause__ or link.__context__
    return isinstance(seen[-1], KeyboardInterrupt)


def _end(number: int, frame: object) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"error: interrupted before anything began\n")
    os._exit(128 + number)
