"""Asking other programs."""

from __future__ import annotations

import subprocess

TIMEOUT_S = 5.0


def output_of(command: list[str]) -> str | None:
    """What `command` prints; None if it is not there, fails, or takes longer than five seconds."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
