"""Hears from the kernel that something in a namespace has changed."""

from __future__ import annotations

import contextlib
import socket

from gradwire.harness.network.shaped.namespace import Namespace

LINK, QUEUE, ADDRESS = 0x1, 0x8, 0x10
"""Groups of route netlink: `RTMGRP_LINK`, `RTMGRP_TC`, `RTMGRP_IPV4_IFADDR`."""


def listen(namespace: Namespace) -> socket.socket:
    """A socket that becomes readable when an interface, a queue or an address in the namespace changes."""
    return namespace.run(_listen)


def forget(listener: socket.socket) -> None:
    """Empties the socket; `diagnose` finds out what has changed."""
    with contextlib.suppress(OSError):  # nothing is left, or there was more than it could keep
        while listener.recv(1 << 16):
            pass


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    listener.setblocking(False)
    listener.bind((0, LINK | QUEUE | ADDRESS))
    return listener
