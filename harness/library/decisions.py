"""A codec's recorded decisions: `decisions.jsonl` as a synchronizer writes and follows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from gradwire.codecs.decision_file import SETTINGS, STEP, STEPS, read_decisions
from gradwire.codecs.interface import Codec, Decision
from gradwire.codecs.wrappers.decisions import Decisions
from gradwire.harness.files.finite_json import dumps
from gradwire.harness.files.writing import write_atomically, writing
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.options import AttachOptions
from gradwire.harness.record.seal import check_sealed_decisions

WHERE_AND_WHEN = {
    *(field.name for field in dataclasses.fields(AttachOptions) if field.name != "seed"),
    *("gradwire", "torch", "device", "codec.decisions"),
}
"""Settings that concern where a synchronizer runs and what is reported, not what is synchronized: they may
differ between a run and another one that follows its decisions."""


def decided_about(description: Statement) -> dict[str, str]:
    """The settings that decisions depend on, out of those that all ranks share."""
    found = {key: value for key, value in description.items() if key not in WHERE_AND_WHEN}
    found["topology"] += f" {found.pop('schedule')}"  # a name first: two schedules may share it
    return found


def check_given_decisions(codec: Codec, description: Statement) -> None:
    """Raises ValueError if the codec follows decisions that were made with other settings, including settings
    of a completed run that were changed later."""
    if isinstance(codec, Decisions) and codec.followed is not None:
        check_sealed_decisions(codec.followed)
        codec.followed.check_settings(decided_about(description))


class DecisionRecord:
    """A file that rank 0 writes decisions to, each when the step before it ends.

    Raises ValueError if `step`, the number of the next step, cannot be recorded there: the first step needs a
    new file, a later one a file with all decisions before it.
    """

    def __init__(self, path: Path, description: Statement, step: int) -> None:
        self._path = path
        self._header: Mapping[str, object] = {STEPS: None, SETTINGS: decided_about(description)}
        self._last = 0
        """The last step whose decision is in the file."""
        if step:
            found = read_decisions(str(path), str(path))
            found.check_settings(decided_about(description))
            self._last = found.num_steps
            self.check(step)
        elif path.exists():
            raise ValueError(f"{path} exists already; give another file, or remove it")
        else:
            self._append(self._header)

    def check(self, step: int) -> None:
        """Raises ValueError unless `step` can be the next step."""
        if step > self._last:
            raise ValueError(
                f"{self._path} has decisions for {self._last} steps, and step {step} comes next; record them "
                "from the first step on"
            )

    def add(self, step: int, decision: Decision) -> None:
        """Writes the decision that `step` follows. It replaces existing decisions for this and later steps,
        which are there if a run was reset to an earlier state. Raises OSError."""
        if step <= self._last:
            found = read_decisions(str(self._path), str(self._path))
            kept = ({STEP: number, **found.decision(number)} for number in range(1, step))
            rows = [self._header, *kept]
            write_atomically(self._path, "".join(map(_line, rows)))
        self._append({STEP: step, **decision})
        self._last = step

    def _append(self, row: Mapping[str, object]) -> None:
        with writing(self._path), self._path.open("a") as file:
            file.write(_line(row))


def _line(row: Mapping[str, object]) -> str:
    return dumps(row) + "\n"
