"""Findings: the doctor's report on one thing each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "needed"]
"""`needed`: it is missing, and `python run.py size=tiny` cannot run without it."""

Environment = Mapping[str, str]

Run = Callable[[list[str]], str | None]
"""Maps a command to what it prints; None if it is missing, fails, or takes too long."""


@dataclass(frozen=True)
class Finding:
    """One line of the page."""

    name: str
    value: str  # what was found, or that it is missing
    state: State = "ok"
    disables: str = ""  # what cannot be done without it
    remedy: str = ""  # how to get it, or to do without


@dataclass(frozen=True)
class FindingsSection:
    """Findings that belong together."""

    title: str
    findings: list[Finding]


def found_or_missing(
    name: str, value: str | None, disables: str, remedy: str, *, needed: bool = False
) -> Finding:
    """A finding that is fine if it has a `value`."""
    if value is not None:
        return Finding(name, value)
    return Finding(name, "missing", "needed" if needed else "missing", disables, remedy)
