"""Unnamed network namespaces, which end when no process is inside or holds their descriptor."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

NEW_NET = 0x40000000
"""`CLONE_NEWNET`; Python has `os.setns` and `os.unshare` from 3.12 on."""

OWN = "/proc/thread-self/ns/net"

SETTINGS = {
    "ipv4/tcp_congestion_control": "reno",  # the system's own may be BBR, which keeps queues short
    "ipv4/tcp_slow_start_after_idle": "0",  # a step's computation is no reason to begin slowly again
    "ipv4/tcp_no_metrics_save": "1",  # a connection does not inherit what an earlier one learned
    "ipv6/conf/default/disable_ipv6": "1",
}
"""Settings below /proc/sys/net in every namespace. They may be missing, e.g. those of IPv6 on a kernel
without it."""

Result = TypeVar("Result")


class Namespace:
    """A new network namespace, held until `close`; this process's own threads do not move into it."""

    def __init__(self) -> None:
        self.descriptor = _in_a_thread(_make)

    def run(self, function: Callable[[], Result]) -> Result:
        """Calls `function()` in a thread inside the namespace: sockets it opens and processes it starts
        belong to the namespace."""

        def inside() -> Result:
            _set(self.descriptor)
            return function()

        return _in_a_thread(inside)

    def close(self) -> None:
        """Lets the kernel remove the namespace with its contents, once no process is inside."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Entrance:
    """Access to a namespace for another process, and its interface there. Can be pickled.

    `clock` is the pipe into which the process writes its training clock; None if no rates depend on it.
    """

    path: str
    interface: str
    clock: str | None = None

    def enter(self) -> None:
        """Moves this thread, and threads it starts later, into the namespace. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set(descriptor)
        finally:
            os.close(descriptor)


def path_of(namespace: Namespace) -> str:
    """The path by which other processes can open the namespace while this process runs."""
    return f"/proc/{os.getpid()}/fd/{namespace.descriptor}"


def _in_a_thread(function: Callable[[], Result]) -> Result:
    """Calls the function in a new thread: a namespace belongs to a thread, which can switch to another one
    and then end."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def _make() -> int:
    _checked("unshare", NEW_NET)
    for name, value in SETTINGS.items():
        path = Path("/proc/sys/net") / name
        if path.exists() or not name.startswith("ipv6"):
            path.write_text(value)
    return os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)


def _set(descriptor: int) -> None:
    _checked("setns", descriptor, NEW_NET)


def _checked(function: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
