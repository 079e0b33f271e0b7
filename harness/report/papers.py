"""Papers as data: `results/papers/<paper>.yaml` says where the report shows each of their parts, or why it
does not.

An item is a table, a figure or a system of the paper. It names the sweep that reproduces it, and either the
plots or the layout of a table: its rows and columns, the cells that these select in the sweep's record, and
the printed figures next to them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from gradwire.harness.files.reading import printable
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.files.typed import made
from gradwire.harness.report.claims.claim import Claim
from gradwire.harness.report.claims.figures import CASE, TASK
from gradwire.harness.report.claims.known_sweeps import Known
from gradwire.harness.report.reference import Reference, alike
from gradwire.harness.timing.measure.metrics import METRICS

FOLDER = "papers"
REMEDY = "correct it there; docs/report.md says what it may hold"

_PAUSE = re.compile(r"[;.] ")


@dataclass(frozen=True)
class Line:
    """A row or a column of a table."""

    ours: dict[str, Any] = field(default_factory=dict)  # axes to values, as claims select
    printed: dict[str, str] = field(default_factory=dict)  # columns of the reference to values
    metric: str | None = None  # null: the table's
    tta: float | None = None  # instead of a metric: the time to this factor of BF16's final metric
    times: float | None = None  # what our figures are multiplied by, e.g. 100 for a percentage
    last: bool = False  # the metric at the last evaluation, of one that is evaluated several times
    change: bool = False  # instead: percent above the table's baseline, paired by seed


@dataclass(frozen=True)
class TableLayout:
    """A table in the paper's form: a cell selects what its row and its column specify together."""

    rows: dict[str, Line]
    columns: dict[str, Line]
    metric: str | None = None
    reference: str | None = None  # "dynamiq/table3"; null: nothing is printed
    baseline: Line = field(default_factory=Line)  # what `change` is against, of ours and of what is printed


@dataclass(frozen=True)
class Item:
    """A part of a paper, by its name there."""

    name: str
    kind: Literal["system", "table", "figure"]
    says: str = ""  # what it is, in a few words
    sweep: str | None = None
    table: TableLayout | None = None
    plots: list[str] = field(default_factory=list)  # names of plots in the sweep's folder, `*` for any part
    captions: dict[str, str] = field(default_factory=dict)  # such a name -> what the plot shows here
    where: str = ""  # what there is of it elsewhere: a page, a test, a command
    why: str = ""  # what is missing, and why

    @property
    def heading(self) -> str:
        """Its text up to the first pause: long texts are no headings."""
        return _PAUSE.split(self.says, maxsplit=1)[0]

    @property
    def more(self) -> str:
        """The rest of its text, as a sentence."""
        rest = "".join(_PAUSE.split(self.says, maxsplit=1)[1:])
        return f"{rest[0].upper()}{rest[1:]}{'' if rest.endswith('.') else '.'}" if rest else ""


@dataclass(frozen=True)
class Paper:
    """One paper; its claims are in `claims/<paper>.py`."""

    name: str
    title: str
    items: list[Item]
    in_short: str = (
        ""  # what holds, what does not, and what could not be tried, in a few sentences written by hand
    )
    lead: str = ""  # what a reader has to know before the counts, in a few sentences
    order: int = 0  # its place on the pages; those of one place by name
    # items; the summary shows the first of their plots that is not at chance
    picture: list[str] = field(default_factory=list)
    topics: dict[str, list[str]] = field(default_factory=dict)  # in words -> patterns of claims' ids
    texts: dict[str, str] = field(
        default_factory=dict
    )  # a claim -> its text where its own refers to another's
    remarks: dict[str, str] = field(default_factory=dict)  # a claim -> what its verdict rests on

    def text(self, claim: Claim) -> str:
        """A claim's text, so that it can be understood alone."""
        return self.texts.get(claim.id, claim.says)


def read_papers(folder: Path) -> list[Paper]:
    """The papers in `folder`, in their order. Raises ValueError in one line for a malformed item."""
    papers = []
    for path in sorted((folder / FOLDER).glob("*.yaml")):
        content = read_yaml(path, remedy=REMEDY, inside=folder)
        entries = content.get("items", {})
        if not isinstance(entries, Mapping):
            raise ValueError(f"{path}: items is not a mapping of names to items; {REMEDY}")
        items = [_item(str(name), entry, path) for name, entry in entries.items()]
        papers.append(made(Paper, {**content, "items": [vars(item) for item in items]}, path, remedy=REMEDY))
        papers[-1] = replace(papers[-1], items=items)
        strange = [name for name in papers[-1].picture if name not in [item.name for item in items]]
        if strange:
            raise ValueError(f"{path}: picture is {strange[0]}, which is not an item; {REMEDY}")
    return sorted(papers, key=lambda paper: paper.order)


def check_named_claims(paper: Paper, known: Collection[str]) -> None:
    """Raises ValueError in one line if a text or a remark is of a claim that the paper does not have."""
    for key, found in (("texts", paper.texts), ("remarks", paper.remarks)):
        strange = sorted(found.keys() - set(known))
        if strange:
            raise ValueError(
                f"{paper.name}: {key} has {printable(strange[0], 40)}, which is not a claim; {REMEDY}"
            )


def check_papers(papers: Sequence[Paper], known: Known, reference: Reference) -> None:
    """Raises ValueError in one line for sweeps, metrics, axes, values and printed figures that do not
    exist.
    """
    for paper in papers:
        for item in paper.items:
            try:
                _check_item(item, known, reference)
            except ValueError as error:
                about = printable(f"{paper.name} {item.name}: {error}", 220)
                raise ValueError(f"{about}; {REMEDY}") from None


def _item(name: str, entry: Any, path: Path) -> Item:
    where = f"{path}: {name}"
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} is not an item; {REMEDY}")
    for part, schema in ((entry, Item), (entry.get("table") or {}, TableLayout), *_lines(entry)):
        strange = (
            sorted(part.keys() - {each.name for each in fields(schema)}) if isinstance(part, Mapping) else []
        )
        if strange:
            what = "layout" if schema is TableLayout else schema.__name__.lower()
            raise ValueError(f"{where} has {strange[0]}, which no {what} has; {REMEDY}")
    item = made(Item, {"name": name, **entry}, where, remedy=REMEDY)
    if not (item.table or item.plots or item.where or item.why):
        raise ValueError(f"{where} needs a table, plots, where it is shown, or why it is not; {REMEDY}")
    if (item.table or item.plots) and item.sweep is None:
        raise ValueError(f"{where} needs the sweep of its table or plots; {REMEDY}")
    return item


def _lines(entry: Mapping[str, Any]) -> list[tuple[Any, type]]:
    layout = entry.get("table")
    if not isinstance(layout, Mapping):
        return []
    groups = [layout.get(key) for key in ("rows", "columns")]
    lines = [(line, Line) for group in groups if isinstance(group, Mapping) for line in group.values()]
    return [*lines, (layout.get("baseline"), Line)]


def _check_item(item: Item, known: Known, reference: Reference) -> None:
    if item.sweep is None:
        return
    if item.sweep not in known:
        raise ValueError(f"{printable(item.sweep, 80)} is not a sweep; {alike(item.sweep, sorted(known))}")
    if item.table is None:
        return
    sweep, layout = known[item.sweep], item.table
    for line in (*layout.rows.values(), *layout.columns.values(), layout.baseline):
        for name, value in line.ours.items():
            if name in (CASE, TASK):
                continue
            sweep.check_value(item.sweep, name, value)
        if layout.reference is not None:
            reference.find(layout.reference, **line.printed)  # not every row has a figure in every column
    lines = [*layout.rows.values(), *layout.columns.values()]
    metrics = [layout.metric, *(line.metric for line in lines)]
    strange = [metric for metric in metrics if metric and metric not in {*METRICS, *sweep.metrics}]
    if strange:
        raise ValueError(f"{strange[0]} is not a metric of {item.sweep}")
