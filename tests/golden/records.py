"""The records of golden cases: one file for each machine, and a log of why they changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import Machine
from runs import Figures

FOLDER = Path(__file__).parent / "records"
LOG = Path(__file__).parent / "log.txt"

ABSENT = "absent"
AGAIN = 'make golden REASON="why they may change"'


@dataclass(frozen=True)
class Record:
    """The figures of all cases on a machine with the sources of `commit`."""

    machine: Machine
    commit: str
    cases: Mapping[str, Figures]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.machine.key}.json"

    def write(self) -> None:
        """A line for each figure, so that a diff shows which have changed."""
        FOLDER.mkdir(exist_ok=True)
        cases = [
            f"{json.dumps(name)}: {{\n"
            + ",\n".join(f"{json.dumps(k)}: {text(v)}" for k, v in figures.items())
            for name, figures in self.cases.items()
        ]
        head = f'"machine": {json.dumps(asdict(self.machine))},\n"commit": {json.dumps(self.commit)}'
        self.path.write_text(f'{{\n{head},\n"cases": {{\n' + "\n},\n".join(cases) + "\n}\n}\n}\n")


def read_record(path: Path) -> Record:
    found = json.loads(path.read_text())
    return Record(Machine(**found["machine"]), found["commit"], found["cases"])


def records() -> list[Record]:
    """All there are, of all machines."""
    return [read_record(path) for path in sorted(FOLDER.glob("*.json"))]


def records_with_most(found: Sequence[Record]) -> Record:
    """The record that knows most cases, which is the newest one: that of a commit which can run them all."""
    return max(found, key=lambda record: len(record.cases))


def record_of(machine: Machine) -> Record | None:
    """The record of this machine, if there is one."""
    return next((record for record in records() if record.machine == machine), None)


def text(value: object) -> str:
    """A figure's JSON, which has every bit of a float: one text, one value, and 0.0 is not -0.0."""
    return json.dumps(value, ensure_ascii=False)


def differences(name: str, before: Figures, after: Figures) -> list[str]:
    """A line for each figure that differs: the case, the step and key, both values."""
    names = list(before) + [key for key in after if key not in before]
    sides = (counted(before), counted(after))
    pairs = {key: [text(side[key]) if key in side else ABSENT for side in sides] for key in names}
    return [f"{name}: {key}: {old} → {new}" for key, (old, new) in pairs.items() if old != new]


def counted(figures: Figures) -> Figures:
    """`figures` without phases in which no bytes were sent, because versions may know different phases."""
    found = dict(figures)
    for key in found:
        if key.endswith("bytes_by_phase"):
            found[key] = {phase: count for phase, count in found[key].items() if count}
    return found


def all_differences(before: Mapping[str, Figures], after: Mapping[str, Figures]) -> list[str]:
    """The differences of all cases; for a case that only one side has, its name."""
    found = []
    for name in list(before) + [name for name in after if name not in before]:
        if name in before and name in after:
            found += differences(name, before[name], after[name])
        else:
            found.append(f"{name}: {'new case' if name in after else 'case removed'}")
    return found


def write_down(record: Record, reason: str, found: list[str], date: str) -> None:
    """Append to the log why this record is made or changed, and every difference."""
    head = f"{date}  {record.machine.key}  at {record.commit}\nreason: {reason}\n"
    with LOG.open("a") as log:
        log.write(head + "".join(f"  {line}\n" for line in found) + "\n")
