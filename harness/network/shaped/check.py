"""Checks whether links can be shaped here before anything is started."""

from __future__ import annotations

import os
import shutil
import sys

from gradwire.harness.network.shaped.attempt import try_namespace

PROGRAMS = ("ip", "tc")


def why_not() -> str | None:
    """Returns None if `network=shaped` works here, else the reason in one line, with the remedy if there is
    one.

    Tries it in a process that then ends. Imports no torch.
    """
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root; use sudo"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found; install iproute2"
    reason = try_namespace()
    return reason and f"the kernel refuses: {reason}"
