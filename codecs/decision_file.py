"""`decisions.jsonl`: the decisions of a run, step by step, for another run to follow.

The first line identifies the run: `{"steps": 100, "settings": {"seed": 0, …}}`, with its number of steps
(null if not known) and the settings that its decisions depend on. Every other line is the decision that one
step follows, `{"step": 1, "mu": [4.0, 4.0]}`, from step 1 on, without a gap; the last one is for the step
after the run's end. Step 0 follows the codec's initial decision and has no line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from gradwire.codecs.interface import Decision
from gradwire.codecs.regular_file import NoRegularFileError, open_regular
from gradwire.codecs.wording import shortened

FILE = "decisions.jsonl"

MOST_BYTES = 2**28
"""The longest file that is read: its lines are kept in memory, those that repeat the one before them once."""

MOST_LINE = 2**20
"""The longest line of it, in bytes."""

STEP, STEPS, SETTINGS = "step", "steps", "settings"

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""Numbers that JSON has no words for, as records write them."""

GIVE = f"give the {FILE} that a run has written"


@dataclass(frozen=True)
class DecisionFile:
    """The decisions of a finished run."""

    option: str
    """The option that named it: `codec.decisions=<path>`."""
    path: Path
    digest: str
    settings: Mapping[str, Any]
    lines: Sequence[bytes]
    """`lines[s]` is what step s + 1 followed, as the file has it."""
    _fits: dict[str, str | None] = field(default_factory=dict)
    """Results of `check_all`."""

    @property
    def num_steps(self) -> int:
        """The last step that has a decision."""
        return len(self.lines)

    def decision(self, step: int) -> Decision:
        """The decision that step `step` followed. Raises ValueError if the run had no such step."""
        if not 1 <= step <= self.num_steps:
            raise ValueError(f"{self.option} has no decision for step {step}, only for 1 to {self.num_steps}")
        return _parsed(self.lines[step - 1])

    def check_all(self, codec: str, wrong: Callable[[Decision], str | None]) -> None:
        """Raises ValueError for the first decision for which `wrong` returns a reason.

        `codec` describes the codec with all of its settings; the file is checked once for each description.
        """
        if codec not in self._fits:
            self._fits[codec] = next(self._wrong_lines(wrong), None)
        if (reason := self._fits[codec]) is not None:
            raise ValueError(reason)

    def _wrong_lines(self, wrong: Callable[[Decision], str | None]) -> Iterator[str]:
        before = None
        for step, line in enumerate(self.lines, start=1):
            if line is not before and (reason := wrong(_parsed(line))) is not None:
                yield self.refusal(step, reason)
            before = line

    def refusal(self, step: int, reason: str) -> str:
        """A message about the decision for a step, with its line in the file."""
        return f"{self.option}: line {step + 1}: {reason}; {GIVE}"

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
    """Reads the decisions in a file.

    `option` is the option that named the file, for messages; by default `codec.decisions=<path>`. Raises
    ValueError, in one line, for anything else than decisions.
    """
    option = option or f"codec.decisions={path}"
    try:
        with open_regular(Path(path).expanduser()) as file:
            status = os.fstat(file.fileno())
            if status.st_size > MOST_BYTES:
                raise ValueError(
                    f"{option} has {status.st_size} bytes, and at most {MOST_BYTES} are read; {GIVE}"
                )
        return _read(path, option, (status.st_ino, status.st_mtime_ns, status.st_size))
    except NoRegularFileError as error:
        raise ValueError(f"{option} {error}; give the {FILE} of a run's directory") from None
    except OSError as error:
        words = (error.strerror or type(error).__name__).lower()
        raise ValueError(f"{option} cannot be read: {words}; give the {FILE} of a run's directory") from None


@lru_cache(maxsize=2)
def _read(path: str, option: str, version: tuple[int, int, int]) -> DecisionFile:
    """Reads and caches a file; `version` changes with it. So a world of 64 ranks in one process reads it
    once."""
    assert version
    digest = hashlib.sha256()
    with open_regular(Path(path).expanduser()) as file:
        rows = _lines(file, option, digest.update)
        first = next(rows, None)
        header = {} if first is None else _row(option, 1, first)
        steps, settings = header.get(STEPS, ""), header.get(SETTINGS)
        if type(steps) not in (int, type(None)) or not isinstance(settings, dict):
            raise ValueError(
                f"{option} is not a file of decisions: its first line does not identify the run; give the "
                f"{FILE} of a run's directory"
            )
        lines: list[bytes] = []
        for step, text in enumerate(rows, start=1):
            line = _of_step(text, step, option)
            repeats = bool(lines) and line == lines[-1]
            if not repeats:
                _check_decision(option, step, line)
            lines.append(lines[-1] if repeats else line)
    if len(lines) < (steps or 0):
        raise ValueError(
            f"{option} ends after {len(lines)} of {steps} steps: the run has not finished; resume it first"
        )
    return DecisionFile(option, Path(path).expanduser(), digest.hexdigest()[:12], settings, lines)


def _lines(file: BufferedReader, option: str, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    """The lines of a file of at most `MOST_BYTES`; `seen` is called with each."""
    number, left = 0, MOST_BYTES
    while line := file.readline(MOST_LINE + 1):
        number, left = number + 1, left - len(line)
        if len(line) > MOST_LINE or left < 0:
            raise ValueError(
                f"{option}: line {number} is longer than any line of a file of decisions; {GIVE}"
            )
        seen(line)
        yield line


def _of_step(line: bytes, step: int, option: str) -> bytes:
    """A line without its leading step number. Most lines of a run are then equal, and equal lines are parsed
    once."""
    begin, key = b'{"%s": %d, ' % (STEP.encode(), step), b'"%s"' % STEP.encode()
    if line.startswith(begin) and key not in line[len(begin) :]:
        return b"{" + line[len(begin) :]
    if _row(option, step + 1, line).get(STEP) != step:
        raise ValueError(f"{option}: line {step + 1} is not the decision for step {step}; give a whole file")
    return line


def _row(option: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{option}: line {number} is damaged; give the whole {FILE} of a run")
    return row


def _check_decision(option: str, step: int, line: bytes) -> None:
    for name, value in _row(option, step + 1, line).items():
        if name != STEP and _value(value) is None:
            problem = f"{shortened(name)} is neither a number nor a list of numbers"
            raise ValueError(f"{option}: line {step + 1}: {problem}; {GIVE}")


@lru_cache(maxsize=64)
def _parsed(line: bytes) -> Decision:
    """The decision in a line that has been checked."""
    return {name: _value(value) for name, value in json.loads(line).items() if name != STEP}  # type: ignore[misc]


def _value(value: Any) -> float | list[float] | None:
    """A decision's number or list of numbers; None for anything else."""
    if isinstance(value, list):
        numbers = [_number(each) for each in value]
        return None if None in numbers else numbers  # type: ignore[return-value]
    return _number(value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return value if type(value) in (int, float) else None
