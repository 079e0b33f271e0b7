"""Scores of guesses: the level of chance of a run's questions, and curves that stay at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

SCORE = "accuracy"
BENCHMARK_SCORES = ("acc", "acc_norm")
ANSWERS = {"mmlu": 4, "cifar10": 10, "glue": 2}
"""The answers that a question of a dataset has; GLUE's tasks have two but for those in `MORE`."""

MORE = {"mnli": 3, "ax": 3}
BENCHMARKS = {
    "arc_easy": 0.25,
    "arc_challenge": 0.25,
    "hellaswag": 0.25,
    "openbookqa": 0.25,
    "piqa": 0.5,
    "winogrande": 0.5,
}
"""The scores of guesses in the benchmarks of lm-eval; nearly all questions of ARC have four answers."""

ERRORS = 2
"""The standard errors within which a score is that of guesses."""


def level(record: SweepRecord, cell: CellRecord) -> float | None:
    """The accuracy of guesses in a cell's questions; None if it is not judged by its accuracy, or its dataset
    is not known here."""
    if cell.metric != SCORE:
        return None
    dataset = str(record.setting(cell, "dataset.name") or record.setting(cell, "dataset"))
    answers = ANSWERS.get(dataset)
    if dataset == "glue":
        answers = MORE.get(str(record.setting(cell, "dataset.configuration")), answers)
    return None if answers is None else 1 / answers


def level_of_runs(record: SweepRecord, cells: Sequence[CellRecord]) -> float | None:
    """The level that all of the cells have in common."""
    found = {level(record, cell) for cell in cells}
    return found.pop() if len(found) == 1 else None


def questions(record: SweepRecord, cell: CellRecord) -> int | None:
    """The number of questions of an evaluation at most, by its settings."""
    found = [record.setting(cell, key) for key in ("eval.max_sequences", "dataset.max_held_out_sequences")]
    known = [int(each) for each in found if isinstance(each, int) and each > 0]
    return min(known) if known else None


def at_chance(record: SweepRecord, cells: Sequence[CellRecord]) -> bool:
    """Returns whether every curve of these cells' accuracy, the median of its seeds at each evaluation, stays
    within two standard errors of guesses. False if there is no such curve."""
    judged = {cell.label: cell for cell in cells if level(record, cell) is not None}
    if not judged:
        return False
    curves: dict[tuple[str, int], list[float]] = {}
    about: dict[str, CellRecord] = {}
    for value in record.values:
        if value.metric == SCORE and value.step is not None and value.run in judged:
            cell = judged[value.run]
            curve = repr(sorted(cell.axes.items()))
            about[curve] = cell
            curves.setdefault((curve, value.step), []).append(value.value)
    if not curves:
        return False
    return all(_guessed(record, about[curve], median(values)) for (curve, _), values in curves.items())


def _guessed(record: SweepRecord, cell: CellRecord, score: float) -> bool:
    chance, number = level(record, cell), questions(record, cell)
    if chance is None or number is None:
        return False
    return abs(score - chance) <= ERRORS * math.sqrt(chance * (1 - chance) / number)
