"""Runs `ip` and `tc` with many lines at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

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
