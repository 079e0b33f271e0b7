"""Parameters of the models that sweeps trained, from the bytes that uncompressed gradients took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.report.groups import count_parameters
from gradwire.harness.report.names import name_of
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

UNCOMPRESSED = ("bf16", "fp32", "sharded_baseline")
SENT, BITS, PER_RANK = "bytes_sent", "wire_bits_per_coordinate", "bytes_per_step_per_rank"

Counts = Mapping[tuple[str, str], int]
"""Parameters by the size of a sweep and the model in it."""


def parameters(records: Sequence[SweepRecord]) -> Counts:
    """The parameters of each model at each size, where all records that tell them agree to three digits."""
    found: dict[tuple[str, str], set[str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for record in records:
        for cell, count in _counted(record):
            key = (record.size, str(record.setting(cell, "model")))
            found.setdefault(key, set()).add(f"{count:.2g}")
            counts.setdefault(key, count)
    return {key: count for key, count in counts.items() if len(found[key]) == 1}


def parameters_of_each(records: Sequence[SweepRecord]) -> list[Counts]:
    """For each record the parameters of its models: by its own bytes, else by those of the other records.
    Sweeps of one size may give a model different widths."""
    common = parameters(records)
    return [{**common, **parameters([record])} for record in records]


def _counted(record: SweepRecord) -> list[tuple[CellRecord, int]]:
    """The coordinates of the gradients of cells that send them as they are."""
    own: dict[str, dict[str, float]] = {}
    for value in record.values:
        if value.step is None and value.metric in (SENT, BITS, PER_RANK):
            figures = own.setdefault(value.run, {})
            figures[value.metric] = figures.get(value.metric, 0.0) + value.value
    cells = [cell for cell in record.cells if cell.done and _plain(record, cell) and cell.label in own]
    counts = [(cell, _coordinates(record, cell, own[cell.label])) for cell in cells]
    return [(cell, count) for cell, count in counts if count is not None]


def _plain(record: SweepRecord, cell: CellRecord) -> bool:
    how = {str(record.setting(cell, key)) for key in ("codec", "experiment")}
    return bool(how & set(UNCOMPRESSED)) and record.setting(cell, "parallel") != "pipeline"


def _coordinates(record: SweepRecord, cell: CellRecord, figures: Mapping[str, float]) -> int | None:
    """A rank sends 2 (n - 1) / n times the gradient in an all-reduce, and n - 1 times in a broadcast."""
    steps: Any = record.setting(cell, "train.steps")
    if not steps or any(figures.get(key, 0.0) <= 0 for key in (SENT, BITS, PER_RANK)):
        return None
    ranks = round(figures[SENT] / float(steps) / figures[PER_RANK])
    if ranks < 2:
        return None
    times: float = ranks - 1 if record.setting(cell, "topology") == "broadcast" else 2 * (ranks - 1) / ranks
    return round(8 * figures[PER_RANK] / figures[BITS] / times)


def models_in_words(record: SweepRecord, cells: Sequence[CellRecord], counts: Counts) -> str:
    """The models of these cells of a record, with their parameters: `LLaMA 1B, chat (131k parameters)`; empty
    if none are known."""
    trained: dict[Any, CellRecord] = {}
    for cell in cells:
        trained.setdefault(record.setting(cell, "model"), cell)
    known = [(model, counts.get((record.size, str(model))), cell) for model, cell in trained.items()]
    return "; ".join(
        f"{name_of('model', model)} ({count_parameters(count)}{_in_pipeline(record, cell, count)})"
        for model, count, cell in known
        if model is not None and count is not None
    )


def _in_pipeline(record: SweepRecord, cell: CellRecord, count: int) -> str:
    """The other count that a pipeline's plots and tables have, in words: of a tied embedding the last stage
    has a copy, whose gradients are synchronized, too."""
    sizes = [record.setting(cell, f"model.{key}") for key in ("vocab_size", "hidden_size")]
    tied = record.setting(cell, "model.tie_embeddings") and record.setting(cell, "parallel") == "pipeline"
    if not tied or not all(isinstance(size, int) for size in sizes):
        return ""
    vocabulary, width = sizes
    copied = count_parameters(count + vocabulary * width).partition(" ")[0]
    return f"; {copied} with the copy of the embedding that a pipeline's last stage has"
