"""`entropies.jsonl`: the entropy of every matrix's gradient during training.

The first line describes the columns: `matrices`, each [name, rows, columns, stage], and `rates`, the shares
of coordinates that entropies were estimated from; `about` describes the run. Every other line is a step with
`nats`: for each rate the differential entropy of each matrix, the mean over the workers that have it, "-inf"
where a worker's gradient is all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.record.directory import ENTROPIES
from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.seal import check_sealed

MATRICES, RATES, ABOUT, STEP, NATS = "matrices", "rates", "about", "step", "nats"
REMEDY = "run the training again with measure.entropy_every=1"


@dataclass(frozen=True)
class MatrixName:
    """A matrix as named in the file; `stage` is the group of ranks that holds it."""

    name: str
    rows: int
    columns: int
    stage: int

    @property
    def numel(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class RecordedEntropies:
    """The contents of the file: `nats` is (steps, rates, matrices) float64."""

    matrices: tuple[MatrixName, ...]
    rates: tuple[float, ...]
    steps: tuple[int, ...]
    nats: Tensor
    about: Mapping[str, Any]


def header(
    matrices: Sequence[MatrixName], rates: Sequence[float], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The first line."""
    columns = [[each.name, each.rows, each.columns, each.stage] for each in matrices]
    return {ABOUT: dict(about), MATRICES: columns, RATES: list(rates)}


def read_entropies(directory: Path) -> RecordedEntropies:
    """The entropies in a run directory. Raises UnusableFileError, naming the file, for anything other than
    `header` and rows of numbers in ascending steps, and for files changed since the run was done."""
    path = directory / ENTROPIES
    check_sealed(path)
    rows = read_rows(path, remedy=REMEDY)
    try:
        first, *others = rows
        matrices = tuple(_matrix(entry) for entry in first[MATRICES])
        rates = tuple(float(rate) for rate in first[RATES])
        steps = tuple(_step(row) for row in others)
        about = dict(first[ABOUT])
        nats = torch.tensor([row[NATS] for row in others], dtype=torch.float64)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UnusableFileError(path, f"is not a record of entropies ({error})", REMEDY) from None
    if not steps or nats.shape != (len(steps), len(rates), len(matrices)):
        raise UnusableFileError(path, "has rows with other columns than its first line, or none", REMEDY)
    if any(after <= before for before, after in zip(steps, steps[1:], strict=False)):
        raise UnusableFileError(path, "has steps that do not ascend", REMEDY)
    return RecordedEntropies(matrices, rates, steps, nats, about)


def _matrix(entry: Sequence[Any]) -> MatrixName:
    name, *numbers = entry
    rows, columns, stage = (int(number) for number in numbers)
    return MatrixName(str(name), rows, columns, stage)


def _step(row: Mapping[str, Any]) -> int:
    step = row[STEP]
    if isinstance(step, bool) or not isinstance(step, int):
        raise ValueError(f"{step!r} is not a step")
    return step


def mean_nats(values: Sequence[float]) -> float:
    """The mean over workers; −inf if one of them has only zeros."""
    return sum(values) / len(values) if values else math.nan
