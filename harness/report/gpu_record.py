"""The record of `make gpu` on one device, read back from its folder."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import read_json, read_json_lines
from gradwire.harness.files.typed import made

REMEDY = "restore it, or measure again with make gpu"
MACHINE = "machine.json"
"""The file that makes a folder one of these."""

TOOLS = ("memcheck", "racecheck", "initcheck")
PASSED = re.compile(r"^.*\d+ (?:passed|failed).*$", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    """The device, and what was measured on it."""

    date: str
    commit: str
    device: str
    driver: str
    torch: str
    kernels: str
    """The architectures that they are compiled for, as `sm_90`."""
    memory: str | None = None
    python: str | None = None
    commands: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OperationTime:
    """One operation's time on one device, for a bucket of `numel` coordinates."""

    operation: str
    dtype: str
    implementation: str
    numel: int
    ns_per_coordinate: float
    bytes_per_coordinate: float
    copy_bytes_per_s: float | None
    """The rate of reading and writing at which this device copies a bucket of this type."""
    values_gb_per_s: float

    @property
    def family(self) -> str:
        return self.operation.partition(".")[0]

    @property
    def ms(self) -> float:
        """Milliseconds for 1e9 coordinates."""
        return 1e3 * self.ns_per_coordinate

    @property
    def floor_ms(self) -> float | None:
        """Milliseconds that a copy of as many bytes takes, for 1e9 coordinates."""
        return (
            None
            if self.copy_bytes_per_s is None
            else 1e12 * self.bytes_per_coordinate / self.copy_bytes_per_s
        )

    @property
    def share(self) -> float | None:
        """The floor divided by the time: 1 at a copy's bandwidth."""
        return None if self.floor_ms is None else self.floor_ms / self.ms


@dataclass(frozen=True)
class OtherTime:
    """The time of code that is not ours, beside the operation of ours that does the same work."""

    implementation: str
    operation: str
    counterpart: str
    dtype: str
    ns_per_coordinate: float


@dataclass(frozen=True)
class GpuRecord:
    """Everything in one folder; parts that have not been measured are empty."""

    folder: Path
    machine: Machine
    operations: list[OperationTime]
    failed: list[str]
    """Operations that could not be timed, and why."""
    others: list[OtherTime]
    rounds: Sequence[Mapping[str, Any]]
    """Lines of `rounds.jsonl`, as `tests/gpu/measure_rounds.py` describes them."""
    counters: list[Mapping[str, str]]
    """Lines of `counters.csv`: one kernel each."""
    training: dict[str, Mapping[str, Any]]
    """Figures of the training runs' summaries, by codec."""
    checks: dict[str, str]
    """Last words of the tests and of compute-sanitizer."""

    def time(self, operation: str, dtype: str) -> OperationTime | None:
        """Our own time of an operation."""
        return next(
            (
                each
                for each in self.operations
                if (each.operation, each.dtype, each.implementation) == (operation, dtype, "cuda")
            ),
            None,
        )


def gpu_folders(results: Path) -> list[Path]:
    """The folders below `results` that `make gpu` has filled, by name."""
    return sorted(path.parent for path in (results / "gpu").glob(f"*/{MACHINE}"))


def read_gpu_record(folder: Path) -> GpuRecord:
    """Reads a folder; raises UnusableFileError for a file that is damaged."""
    rows = _lines(folder / "rows.jsonl")
    others = [*_lines(folder / "compiled.jsonl"), *_lines(folder / "authors.jsonl")]
    path = folder / MACHINE
    return GpuRecord(
        folder,
        made(Machine, read_json(path, remedy=REMEDY, inside=folder), path, remedy=REMEDY),
        [_made(OperationTime, row, folder / "rows.jsonl") for row in rows if "error" not in row],
        [f"{row.get('operation')}, {row.get('dtype')}: {row['error']}" for row in rows if "error" in row],
        [_made(OtherTime, row, folder / "compiled.jsonl") for row in others],
        _lines(folder / "rounds.jsonl"),
        _table(folder / "counters.csv"),
        {
            file.stem.removeprefix("train-"): read_json(file, remedy=REMEDY, inside=folder)
            for file in sorted(folder.glob("train-*.json"))
        },
        _checks(folder),
    )


def _made(cls: type[Any], row: Mapping[str, Any], path: Path) -> Any:
    """A row as a dataclass, without the row's other keys."""
    return made(cls, {key: row[key] for key in cls.__dataclass_fields__ if key in row}, path, remedy=REMEDY)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [line for _, line in read_json_lines(path, remedy=REMEDY, inside=path.parent)]


def _table(path: Path) -> list[Mapping[str, str]]:
    if not path.is_file():
        return []
    text = read_text(path, remedy=REMEDY, inside=path.parent)
    try:
        return list(csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise UnusableFileError(path, f"is not a table ({error})", REMEDY) from None


def _checks(folder: Path) -> dict[str, str]:
    """Last words of the tests' log and of each sanitizer's, from the logs that are there."""
    found = dict[str, str]()
    tests = folder / "tests.log"
    if tests.is_file():
        passed = PASSED.findall(read_text(tests, remedy=REMEDY, inside=folder))
        found["tests/gpu"] = passed[-1].strip(" =") if passed else "did not end"
    for tool in TOOLS:
        log = folder / f"{tool}.log"
        if log.is_file():
            lines = read_text(log, remedy=REMEDY, inside=folder).split("\n")
            found[f"compute-sanitizer {tool}"] = next(
                (line for line in reversed(lines) if line.strip()), "nothing"
            )
    return found
