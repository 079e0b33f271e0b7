"""Figures of a study's record: a field names its metric, and the lines of the results frame follow.

    @dataclass(frozen=True)
    class PredictSummary(StudyRecord):
        file = "predict.json"
        step_s: Annotated[float, Figure("step_time_s", "modelled")]

`RECORD` in `studies/<task>/record.py` is the record of `task=<task>`; nothing else has to know of it. These
modules import no PyTorch, because reports load them all.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

from gradwire.harness.record.summary import Stored
from gradwire.harness.timing.measure.metric import Kind, Metric
from gradwire.harness.timing.measure.metrics import METRICS, kind_of

STUDIES = Path(__file__).resolve().parent.parent / "studies"


class FigureValue(NamedTuple):
    """One value of a metric; `case` says of which part of the record."""

    metric: str
    value: float
    case: str = ""
    kind: Kind = "measured"
    seed: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Figure:
    """A field's metric, by its key or as a whole where METRICS does not have it yet.

    `kind` is that of the value; `real` stands for that of the record's network. `each` says what tells the
    values of a mapping or a list apart.
    """

    metric: str | Metric
    kind: Kind | Literal["real"] = "measured"
    each: Literal["case", "level", "rank", "repeat", "step"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metric, Metric):
            METRICS.setdefault(self.metric.key, self.metric)

    def values(self, found: Any, content: Mapping[str, Any], case: str = "") -> Iterator[FigureValue]:
        """The values of the field that holds `found` in a record's `content`; none for what is not known.

        A repeat has a seed of its own, and NaN where its error has no value.
        """
        metric = self.metric.key if isinstance(self.metric, Metric) else self.metric
        network = content.get("network_settings") or {}
        kind = kind_of(None, network.get("name")) if self.kind == "real" else self.kind
        about = FigureValue(metric, math.nan, case, kind, content.get("seed"))
        lines: list[tuple[FigureValue, Any]] = [(about, found)]
        if self.each == "case":
            lines = [(about._replace(case=key), value) for key, value in (found or {}).items()]
        elif self.each == "level":
            lines = [
                (about._replace(metric=f"{metric}.{key}"), value) for key, value in (found or {}).items()
            ]
        elif self.each is not None:
            lines = [(self._of_item(about, index), value) for index, value in enumerate(found)]
        for line, value in lines:
            if isinstance(value, int | float):
                yield line._replace(value=value)
            elif self.each == "repeat":
                yield line

    def _of_item(self, about: FigureValue, index: int) -> FigureValue:
        if self.each == "rank":
            return about._replace(case=f"rank {index}")
        if self.each == "step":
            return about._replace(step=index)
        return about._replace(seed=(about.seed or 0) + index)


class StudyRecord(Stored):
    """What a study leaves, as a dataclass whose fields carry their figures."""

    file: ClassVar[str]

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """All figures of the record with this content; KeyError where it lacks a field without default."""
        for name, figure, is_optional in _declared(cls):  # type: ignore[arg-type]  # takes its instances' __hash__
            yield from figure.values(content.get(name) if is_optional else content[name], content)

    @classmethod
    def tables(cls, content: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Rows that wandb shows besides the figures, by the name of their table."""
        return {}

    def scalars(self) -> dict[str, Any]:
        """The fields that are single values, as columns of a CSV."""
        return {key: value for key, value in self.content().items() if not isinstance(value, dict | list)}


@cache
def _declared(cls: type[StudyRecord]) -> list[tuple[str, Figure, bool]]:
    """The fields that are figures, and whether older records may lack them."""
    hints = get_type_hints(cls, include_extras=True)
    optional = {
        each.name: each.default is not MISSING or each.default_factory is not MISSING
        for each in getattr(cls, "__dataclass_fields__", {}).values()
    }
    return [
        (name, figure, is_optional)
        for name, is_optional in optional.items()
        for figure in getattr(hints[name], "__metadata__", ())
        if isinstance(figure, Figure)
    ]


@cache
def study_records() -> Mapping[str, type[StudyRecord]]:
    """The records of all studies, by task."""
    tasks = sorted(path.parent.name for path in STUDIES.glob("*/record.py"))
    modules = {task: importlib.import_module(f"gradwire.harness.studies.{task}.record") for task in tasks}
    return {task: module.RECORD for task, module in modules.items()}
