"""Lines of the report's pages in words: what a verdict rests on, and the record behind a table or a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gradwire.harness.network.configured import common_text
from gradwire.harness.report.captions import legend_key
from gradwire.harness.report.claims.verdict import Verdict
from gradwire.harness.report.evaluations import Recorded, ShownItem
from gradwire.harness.report.in_words import in_words
from gradwire.harness.report.paper_tables import CHANGED_SOURCES
from gradwire.harness.report.sweep_record import SweepRecord

MOST_CHARACTERS = 420
"""The most figures of a claim next to its verdict; the rest is in a fold, and left out of the README."""


@dataclass(frozen=True)
class Told:
    """The figures that a verdict rests on, in words: those shown, and the rest."""

    shown: list[str]
    rest: list[str]


def told(verdict: Verdict) -> Told:
    """The first lines of a verdict's figures, as far as they are short, and all others."""
    lines = in_words(verdict.used)
    lengths = accumulate(map(len, lines))
    number = sum(1 for length in lengths if length <= MOST_CHARACTERS)
    return Told(lines[:number], lines[number:])


def summary(verdict: Verdict) -> str:
    """The first figures of a verdict in one line, cut where they are long."""
    found = told(verdict)
    if found.shown or not found.rest:
        return "; ".join([*found.shown, *(["…"] if found.rest else [])])
    return found.rest[0][:MOST_CHARACTERS].rpartition(", ")[0] + ", …"


def source(shown: ShownItem | Recorded | None) -> str:
    """The source of an item's figures, in words; empty for one without a record."""
    found = shown.source if isinstance(shown, ShownItem) else shown
    if found is None:
        return ""
    record = found.record
    seeds = f"{len(record.seeds)} seed{'s' * (len(record.seeds) != 1)}"
    done = sum(cell.done for cell in record.cells)
    parts = [
        record.name,
        f"size={record.size}",
        *asked(record),
        seeds,
        f"{done} of {len(record.cells)} cells",
    ]
    return ", ".join([*parts, *([f"text: {record.text}"] if record.text else [])])


def about(shown: ShownItem) -> str:
    """The line below the heading of a table or figure: the models with their parameters, the network, the
    seeds, what is missing, and where there is more."""
    parts = [
        f"ours: {shown.models}" if shown.models else "",
        network(shown),
        f"{shown.seeds} seed{'s' * (shown.seeds != 1)}" if shown.seeds else "",
        legends(shown),
        *shown.reasons,
        shown.item.where,
        *(
            f"left out, as every curve is within two standard errors of guesses: {each}"
            for each in shown.guessed
        ),
    ]
    return "; ".join(filter(None, parts))


def legends(shown: ShownItem) -> str:
    """Explains names in the legends of an item's pictures; empty where they explain themselves."""
    if shown.source is None or not shown.pictures:
        return ""
    record = shown.source.record
    return legend_key(str(record.setting(cell, "codec")) for cell in record.cells)


def asked(record: SweepRecord) -> list[str]:
    """The overrides by which a sweep's command line changed its cells, e.g. `with codec=bf16`; empty without
    any."""
    return [f"with {' '.join(record.overrides)}"] if record.overrides else []


def network(shown: ShownItem) -> str:
    """The network of a table's figures, or of the runs that plots show, in words; empty without any."""
    if shown.table is not None:
        found = shown.table.networks
    else:
        found = shown.source.record.networks() if shown.source is not None else []
        found = [common_text(found)] if found else []
    return f"network: {'; '.join(found)}" if found else ""


def networks(record: SweepRecord) -> str:
    """The networks of a record's cells: what these have in common, by kind."""
    return common_text(record.networks())


def machines(record: SweepRecord) -> str:
    """The machines that its cells ran on, in words."""
    found = [_machine(cell.machine) for cell in record.cells if cell.machine]
    return "; ".join(dict.fromkeys(found)) or "unknown"


def commits(record: SweepRecord) -> str:
    """The commits that its cells ran, short; `+` where the sources had been changed."""
    found = [
        f"{(cell.commit or 'unknown')[:7]}{CHANGED_SOURCES * bool(cell.dirty)}"
        for cell in record.cells
        if cell.done
    ]
    return ", ".join(dict.fromkeys(found)) or "none"


def _machine(about: dict[str, Any]) -> str:
    gpus: Sequence[str] = about.get("gpus") or []
    count = {name: gpus.count(name) for name in dict.fromkeys(gpus)}
    parts = [str(about.get("processor", "a processor")), f"{about.get('cores', '?')} cores"]
    return ", ".join([*parts, *(f"{times} × {name}" for name, times in count.items())])
