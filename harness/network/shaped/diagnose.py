"""Finds ranks whose link is not as it was configured or has changed since, and listens for changes.

The kernel only reports the namespace of a change; inspecting the links shows what has changed.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.harness.network.shaped.namespace import Namespace
from gradwire.harness.network.shaped.star import (
    SWITCH,
    UPLINK,
    ShapingError,
    address,
    batch,
    downlink,
    listed,
)

PRINTED_RATE = re.compile(r" rate (\d+)([KMGT]?)bit ")
UNITS = {"": 1e-6, "K": 1e-3, "M": 1.0, "G": 1e3, "T": 1e6}
"""The units of the rates that `tc` prints, in 10⁶ bit/s."""

TOLERANCE = 0.01
"""The relative tolerance of rates: `tc` prints whole units and the kernel stores whole bytes per second,
which differ by 0.2 % at 1000 bit/s."""

LINK, QUEUE, ADDRESS = 0x1, 0x8, 0x10
"""Groups of route netlink: `RTMGRP_LINK`, `RTMGRP_TC`, `RTMGRP_IPV4_IFADDR`."""


@dataclass(frozen=True)
class End:
    """One end of a link as the kernel lists it: the interface, its queues from the root on, its rate."""

    interface: Mapping[str, Any]
    queues: tuple[str, ...]
    limit: str

    def is_up(self) -> bool:
        return "UP" in self.interface["flags"]

    def has_carrier(self) -> bool:
        return "LOWER_UP" in self.interface["flags"]

    def is_shaped(self) -> bool:
        """True if all outgoing packets pass through htb's only class into a queue."""
        through_htb = len(self.queues) == 2 and self.queues[0] == "htb"
        return through_htb and self.limit.startswith("class htb 1:1")

    def reshaped(self, rate_mbit: float, before: str, after: str) -> End:
        """This end after its rate was changed on purpose, given the output of `tc` before and after.

        If it was not as configured before, it is returned unchanged, so that the difference is found like any
        other. Raises ShapingError if it does not have the new rate.
        """
        found = PRINTED_RATE.search(after)
        rate = int(found[1]) * UNITS[found[2]] if found else 0.0
        if abs(rate - rate_mbit) > TOLERANCE * rate_mbit:
            raise ShapingError(f"after a change to {rate_mbit:g} Mbit/s tc says {after}")
        return replace(self, limit=after) if before == self.limit else self


@dataclass(frozen=True)
class LinkState:
    """Both ends of a rank's link, if they were found."""

    rank: int
    uplink: End | None
    downlink: End | None
    switched: bool

    def trouble(self, made: LinkState | None = None) -> str | None:
        """The fault of the link, or its change since it was `made`; None if there is none."""
        if self.uplink is None or self.downlink is None:
            return "its link is gone"
        both = (self.uplink, self.downlink)
        if not all(end.is_up() for end in both):
            return "its link is down"
        if not all(end.has_carrier() for end in both):
            return "its link has no carrier"
        if not all(end.is_shaped() for end in both) or (made is not None and self.limits() != made.limits()):
            return "its link is not shaped as it was made"
        own = {entry.get("local") for entry in self.uplink.interface["addr_info"]}
        if address(self.rank) not in own:
            return "its link has lost its address"
        return None if self.switched else "its link has left the switch"

    def limits(self) -> tuple[str, ...]:
        """The rates of both ends, as printed, and the kinds of their queues."""
        return tuple(f"{end.queues} {end.limit}" for end in (self.uplink, self.downlink) if end is not None)


def links(switch: Namespace, ranks: Sequence[Namespace]) -> list[LinkState]:
    """The current state of all links."""
    far = _ends(switch, [SWITCH, *(downlink(rank) for rank in range(len(ranks)))])
    works = SWITCH in far and far[SWITCH].is_up()
    found = []
    for rank, namespace in enumerate(ranks):
        end = far.get(downlink(rank))
        switched = works and end is not None and end.interface.get("master") == SWITCH
        found.append(LinkState(rank, _ends(namespace, [UPLINK]).get(UPLINK), end, switched))
    return found


def troubles(found: Sequence[LinkState], made: Sequence[LinkState] | None = None) -> dict[int, str]:
    """The faults of links, by rank."""
    reasons = {link.rank: link.trouble(None if made is None else made[link.rank]) for link in found}
    return {rank: reason for rank, reason in reasons.items() if reason is not None}


def _ends(namespace: Namespace, names: Sequence[str]) -> dict[str, End]:
    """The interfaces of a namespace that have one of these names."""

    def look() -> dict[str, End]:
        present = [entry for entry in listed("ip", "address", "show") if entry["ifname"] in names]
        queues = listed("tc", "qdisc", "show")
        return {entry["ifname"]: _end(entry, queues) for entry in present}

    return namespace.run(look)


def _end(interface: Mapping[str, Any], queues: Sequence[Mapping[str, Any]]) -> End:
    name = interface["ifname"]
    kinds = [queue["kind"] for queue in queues if queue["dev"] == name]
    try:
        limit = batch("tc", [f"class show dev {name}"]).strip()
    except ShapingError:  # gone since it was listed
        limit = ""
    return End(interface, tuple(kinds), limit)


def listen(namespace: Namespace) -> socket.socket:
    """A socket that becomes readable when an interface, a queue or an address in the namespace changes."""
    return namespace.run(_listen)


def forget(listener: socket.socket) -> None:
    """Empties the socket; `links` shows the changes."""
    with contextlib.suppress(OSError):  # nothing is left, or there was more than it could keep
        while listener.recv(1 << 16):
            pass


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    listener.setblocking(False)
    listener.bind((0, LINK | QUEUE | ADDRESS))
    return listener
