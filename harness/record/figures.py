"""Figures of a study's record: a field names its metric, from which the rows of the results frame are made.

    @dataclass(frozen=True)
    class PredictSummary(StudyRecord):
        file = "predict.json"
        step_s: Annotated[float, Figure("step_time_s", "modelled")]

`STUDY` in `studies/<task>/study.py` defines `task=<task>` and names its record; no other file has to mention
it. These modules do not import PyTorch, because the command line's help and reports load them all.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.summary import Stored
from gradwire.harness.timing.measure.metric import Kind, Metric
from gradwire.harness.timing.measure.metrics import METRICS, kind_of

STUDIES = Path(__file__).resolve().parent.parent / "studies"

Each = Literal["case", "level", "rank", "repeat", "step"]
"""The part of a value that tells those of a mapping (by key) or of a list (by place) apart."""


class FigureValue(NamedTuple):
    """One value of a metric; `case` identifies the part of the record."""

    metric: str
    value: float
    case: str = ""
    kind: Kind = "measured"
    seed: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Figure:
    """The metric of a field, given by its key, or as a `Metric` if METRICS does not contain it yet.

    `kind` is the kind of the value; `real` means that of the record's network. `each` names the attribute
    that distinguishes the values of a mapping or list. `column` is the position in a comparison's table; a
    figure without it is not in that table.
    """

    metric: str | Metric
    kind: Kind | Literal["real"] = "measured"
    each: Each | tuple[Each | int, ...] | None = None
    column: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metric, Metric):
            METRICS.setdefault(self.metric.key, self.metric)

    @property
    def key(self) -> str:
        """The key of the figure's metric."""
        return self.metric.key if isinstance(self.metric, Metric) else self.metric

    def values(self, found: Any, content: Mapping[str, Any], case: str = "") -> Iterator[FigureValue]:
        """The values of the field, which holds `found` in a record's `content`; empty if it is not known.

        A repeat has its own seed, and NaN where its error is undefined.
        """
        metric = self.key
        network = content.get("network_settings") or {}
        kind = kind_of(None, network.get("name")) if self.kind == "real" else self.kind
        lines: list[tuple[FigureValue, Any]] = [
            (FigureValue(metric, math.nan, case, kind, content.get("seed")), found)
        ]
        for level in self.levels:
            lines = [line for about, value in lines for line in _split(level, about, value)]
        for line, value in lines:
            if isinstance(value, int | float):
                yield line._replace(value=value)
            elif "repeat" in self.levels:
                yield line

    @property
    def levels(self) -> tuple[Each | int, ...]:
        """`each`, from the outermost mapping or list to the innermost."""
        if self.each is None:
            return ()
        return self.each if isinstance(self.each, tuple) else (self.each,)


def _split(level: Each | int, about: FigureValue, found: Any) -> Iterator[tuple[FigureValue, Any]]:
    """The items of a mapping or a list, each with what is known of it."""
    if isinstance(level, int):
        yield about, found[level]
    elif level in ("case", "level"):
        for key, value in (found or {}).items():
            metric = f"{about.metric}.{key}" if level == "level" else about.metric
            yield about._replace(metric=metric, case=key if level == "case" else about.case), value
    else:
        for index, value in enumerate(found):
            places: dict[str, dict[str, Any]] = {
                "rank": {"case": f"rank {index}"},
                "step": {"step": index},
                "repeat": {"seed": (about.seed or 0) + index},
            }
            yield about._replace(**places[level]), value


class FigureFields:
    """A dataclass whose fields, and properties that follow from these, carry figures."""

    @classmethod
    def declared(cls) -> list[tuple[str, Figure, bool]]:
        """The fields and properties that are figures, with a flag that says whether a file may lack them."""
        return _declared(cls)  # type: ignore[arg-type]  # takes its instances' __hash__

    @classmethod
    def figures_in(
        cls, content: Mapping[str, Any], record: Mapping[str, Any], case: str = ""
    ) -> Iterator[FigureValue]:
        """The figures of `content`, which is a part of the content `record`, or all of it; `case` says which.

        KeyError where it lacks a field without default.
        """
        for name, figure, is_optional in cls.declared():
            yield from figure.values(content.get(name) if is_optional else content[name], record, case)

    @classmethod
    def single_figures(cls) -> list[str]:
        """The fields whose figure is one value."""
        return [name for name, figure, _ in cls.declared() if figure.each is None]

    @classmethod
    def columns(cls) -> dict[str, str]:
        """The fields in a table, in its order, with the keys of their metrics."""
        placed = [
            (figure.column, name, figure.key)
            for name, figure, _ in cls.declared()
            if figure.column is not None
        ]
        return {name: key for _, name, key in sorted(placed)}


class StudyRecord(Stored, FigureFields):
    """A study's record."""

    file: ClassVar[str] = SUMMARY

    part_types: ClassVar[tuple[type[FigureFields], ...]] = ()
    """The classes of its parts that have figures of their own."""

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """All figures of a record with this content. Raises KeyError if it lacks a field without default."""
        yield from cls.figures_in(content, content)

    def content(self) -> dict[str, Any]:
        """The fields, and the properties that are figures."""
        derived = [name for name, _, is_optional in self.declared() if is_optional]
        fields = super().content()
        return fields | {name: getattr(self, name) for name in derived if name not in fields}

    @classmethod
    def declare_metrics(cls) -> None:
        """Adds the metrics defined in its fields to METRICS; annotations are only evaluated on request."""
        for each in (cls, *cls.part_types):
            each.declared()

    @classmethod
    def tables(cls, content: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Rows that wandb shows in addition to the figures, by the name of their table."""
        return {}

    def scalars(self) -> dict[str, Any]:
        """The fields that are single values, as columns of a CSV."""
        return {key: value for key, value in self.content().items() if not isinstance(value, dict | list)}


@cache
def _declared(cls: type[FigureFields]) -> list[tuple[str, Figure, bool]]:
    hints = get_type_hints(cls, include_extras=True)
    optional = {
        each.name: each.default is not MISSING or each.default_factory is not MISSING
        for each in getattr(cls, "__dataclass_fields__", {}).values()
    }
    for name, each in ((name, each) for base in reversed(cls.__mro__) for name, each in vars(base).items()):
        if isinstance(each, property):
            hints[name] = get_type_hints(each.fget, include_extras=True).get("return")
            optional[name] = True
    return [
        (name, figure, is_optional)
        for name, is_optional in optional.items()
        for figure in getattr(hints[name], "__metadata__", ())
        if isinstance(figure, Figure)
    ]


def study_module(task: str) -> str:
    """The module that defines the `STUDY` of a task."""
    return f"gradwire.harness.studies.{task}.study"


@cache
def study_names() -> tuple[str, ...]:
    """The tasks that are studies."""
    return tuple(sorted(path.parent.name for path in STUDIES.glob("*/study.py")))


@cache
def study_records() -> Mapping[str, type[StudyRecord]]:
    """The records of all studies, by task."""
    return {task: importlib.import_module(study_module(task)).STUDY.record for task in study_names()}
