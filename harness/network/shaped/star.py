"""The commands that make a star of shaped links: one switch, and a pair of interfaces for each rank; and the
running of `ip` and `tc` with many of them at a time.

A rank's end of its link shapes what the rank sends; the switch's end shapes what it receives. So the uplink
and the downlink have the same rate. With htb the payload of a stream is 95.6 % of the rate, the rest being
headers (measured at 100 and 200 Mbit/s, on idle and on busy cores).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SWITCH = "switch"
UPLINK = "uplink"
"""A rank's interface, in its own namespace."""

MOST_RANKS = 250

BURST_BYTES = 64 * 1024
"""At least one packet as the kernel handles it; TCP makes packets of up to 64 KiB.

htb's other bucket, `cburst`, stays at one frame: with 64 KiB in both, a message of 250 kB after a pause
arrived at 170 Mbit/s through a link of 100.
"""

QUANTUM_BYTES = 60000
"""Only set to avoid the kernel's warning about the value that it derives from the rate."""


@dataclass(frozen=True)
class LinkLimits:
    """The rate of one link each way, and how much data may be queued.

    `rate_mbit` in 10⁶ bit/s, headers included. At most `queue_kb` KiB are queued; None means the kernel's
    default, a number of packets that depends on the interface.
    """

    rate_mbit: float
    queue_kb: int | None


def downlink(rank: int) -> str:
    """The switch's end of a rank's link."""
    return f"rank{rank}"


def address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def switch_interfaces(paths: list[str]) -> list[str]:
    """`ip` commands, in the switch's namespace, for links into the ranks' namespaces at `paths`."""
    lines = [f"link add {SWITCH} type bridge", f"link set {SWITCH} up"]
    for rank, path in enumerate(paths):
        lines.append(f"link add {downlink(rank)} type veth peer name {UPLINK} netns {path}")
        lines.append(f"link set {downlink(rank)} master {SWITCH} up")
    return lines


def rank_interfaces(rank: int) -> list[str]:
    """`ip` commands in a rank's namespace."""
    return ["link set lo up", f"address add {address(rank)}/16 dev {UPLINK}", f"link set {UPLINK} up"]


def shaping(interface: str, limits: LinkLimits) -> list[str]:
    """`tc` commands that limit outgoing traffic on `interface`.

    The queue is named even if it is the kernel's default, so that it can be listed.
    """
    queue = "pfifo" if limits.queue_kb is None else f"bfifo limit {limits.queue_kb * 1024}"
    return [
        f"qdisc add dev {interface} root handle 1: htb default 1 r2q 1000",
        f"class add dev {interface} parent 1: classid 1:1 htb {_limit(limits.rate_mbit)}",
        f"qdisc add dev {interface} parent 1:1 {queue}",
    ]


def reshaping(interface: str, rate_mbit: float) -> list[str]:
    """`tc` commands that change the rate of outgoing traffic on a shaped `interface`, and print its limit
    before and after. Queued packets stay in the queue."""
    limit = _limit(rate_mbit)
    show = f"class show dev {interface}"
    return [show, f"class change dev {interface} parent 1: classid 1:1 htb {limit}", show]


def _limit(rate_mbit: float) -> str:
    return f"rate {round(rate_mbit * 1e6)}bit burst {BURST_BYTES} quantum {QUANTUM_BYTES}"


TIMEOUT_S = 20.0


class ShapingError(ValueError):
    """Raised if the network cannot be made as configured; the text is one line."""


def batch(program: str, lines: Sequence[str]) -> str:
    """Returns the output of `program` for these commands, run in the namespace of the calling thread.

    Raises ShapingError with the command that failed.
    """
    ran = _ran([program, "-batch", "-"], "\n".join(lines) + "\n")
    if ran.returncode:
        errors = ran.stderr.strip().splitlines()
        failed = next((line for line in errors if line.startswith("Command failed")), "")
        number = failed.rpartition(":")[2]
        command = lines[int(number) - 1] if number.isdigit() else lines[0]
        raise ShapingError(f"{program} {command}: {errors[0] if errors else f'exit code {ran.returncode}'}")
    return ran.stdout


def listed(program: str, *arguments: str) -> list[dict[str, Any]]:
    """Returns the JSON that `program` lists. Raises ShapingError."""
    ran = _ran([program, "-json", *arguments])
    if ran.returncode:
        raise ShapingError(f"{program} {' '.join(arguments)}: {ran.stderr.strip()}")
    found: list[dict[str, Any]] = json.loads(ran.stdout.strip() or "[]")
    return found


def _ran(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            process_group=0,  # a terminal's Ctrl-C does not end what a rank does while its step is saved
        )
    except subprocess.TimeoutExpired:
        raise ShapingError(f"{command[0]} did not end within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ShapingError(f"{command[0]}: {error.strerror}") from None
