"""`decisions.jsonl`: what a run decided, step by step, for another run to replay.

The first line says whose decisions they are: `{"steps": 100, "settings": {"seed": 0, …}}`, the number of
steps of the run (null if nobody knew it) and the settings that its decisions are about. Every other line is
the decision that one step follows, `{"step": 1, "mu": [4.0, 4.0]}`, from step 1 on, without a gap; the last
one would hold for the step after the run's end. The first step, 0, follows the codec's first decision.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradwire.codecs.interface import Decision

FILE = "decisions.jsonl"

MOST_BYTES = 2**31
"""The longest file that is read."""

STEP, STEPS, SETTINGS = "step", "steps", "settings"

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""As records write numbers that JSON has no words for."""


@dataclass(frozen=True)
class DecisionFile:
    """The decisions of a finished run: `followed[s]` is what step s + 1 followed."""

    option: str
    """How it was asked for, as `codec.decisions=<path>`."""
    digest: str
    settings: Mapping[str, Any]
    followed: tuple[Decision, ...]

    def decision(self, step: int) -> Decision:
        """What step `step` followed. Raises ValueError for one that the run did not have."""
        if not 1 <= step <= len(self.followed):
            last = len(self.followed)
            raise ValueError(f"{self.option} has no decision for step {step}, only for 1 to {last}")
        return self.followed[step - 1]

    def check_names(self, codec: str, own: Decision) -> None:
        """Raises ValueError unless decisions have the names of `own`, a decision of `codec`."""
        for number, decision in enumerate(self.followed, start=1):
            if decision.keys() != own.keys():
                raise ValueError(
                    f"{self.option}: step {number} decides {', '.join(sorted(decision))}, but codec={codec} "
                    f"decides {', '.join(sorted(own))}; give decisions of that codec"
                )

    def check_settings(self, own: Mapping[str, Any]) -> None:
        """Raises ValueError unless the run that made the file had the settings `own`."""
        for key in sorted(own.keys() | self.settings.keys()):
            there, here = self.settings.get(key), own.get(key)
            if there != here:
                raise ValueError(
                    f"{self.option} belongs to another run, with {key}={there}, this one has {key}={here}; "
                    "give the decisions of a run with the same settings"
                )


def read_decisions(path: str, option: str | None = None) -> DecisionFile:
    """The decisions in a file, which `option` has asked for: `codec.decisions=<path>`, unless it is given.
    Raises ValueError for anything else, in one line."""
    option = option or f"codec.decisions={path}"
    try:
        status = Path(path).expanduser().stat()
        if status.st_size > MOST_BYTES:
            raise ValueError(f"{option} has {status.st_size} bytes, more than any file of decisions")
        return _read(path, option, (status.st_mtime_ns, status.st_size))
    except OSError as error:
        words = (error.strerror or type(error).__name__).lower()
        raise ValueError(f"{option} cannot be read: {words}; give the {FILE} of a run's directory") from None


@lru_cache(maxsize=4)
def _read(path: str, option: str, version: tuple[int, int]) -> DecisionFile:
    """`version` changes with the file: a world of 64 ranks reads it once."""
    assert version
    content = Path(path).expanduser().read_bytes()
    rows = [_row(option, number, line) for number, line in enumerate(content.splitlines(), start=1)]
    header = rows[0] if rows else {}
    steps, settings = header.get(STEPS, ""), header.get(SETTINGS)
    if type(steps) not in (int, type(None)) or not isinstance(settings, dict):
        raise ValueError(
            f"{option} is no file of decisions: its first line does not say whose they are; give the {FILE} "
            "of a run's directory"
        )
    followed = tuple(_decision(option, number, row) for number, row in enumerate(rows[1:], start=1))
    if len(followed) < (steps or 0):
        raise ValueError(
            f"{option} ends after {len(followed)} of {steps} steps: the run has not come to its end; resume "
            "it first"
        )
    digest = hashlib.sha256(content).hexdigest()[:12]
    return DecisionFile(option, digest, settings, followed)


def _row(option: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{option}: line {number} is damaged; give the whole {FILE} of a run")
    return row


def _decision(option: str, step: int, row: dict[str, Any]) -> Decision:
    if row.pop(STEP, None) != step:
        raise ValueError(f"{option}: line {step + 1} is not the decision for step {step}; give a whole file")
    found = {name: _value(value) for name, value in row.items()}
    wrong = [name for name, value in found.items() if value is None]
    if wrong:
        raise ValueError(f"{option}: {wrong[0]} of step {step} is neither a number nor a list of numbers")
    return found  # type: ignore[return-value]


def _value(value: Any) -> float | list[float] | None:
    """A decision's number or numbers, None for anything else."""
    if isinstance(value, list):
        numbers = [_number(each) for each in value]
        return None if None in numbers else numbers  # type: ignore[return-value]
    return _number(value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return value if type(value) in (int, float) else None
