"""Contents of the report: each paper's claims, tables, figures and systems, from the records in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradwire.harness.report.claims.claim import Basis, rank
from gradwire.harness.report.claims.known_sweeps import Known, KnownSweep
from gradwire.harness.report.claims.papers import CLAIMS
from gradwire.harness.report.claims.verdict import Reason, Verdict, Word, judge
from gradwire.harness.report.gpu_record import GpuRecord, gpu_folders, read_gpu_record
from gradwire.harness.report.in_words import resolution
from gradwire.harness.report.not_run import not_run
from gradwire.harness.report.paper_tables import PaperTable, fill
from gradwire.harness.report.papers import Item, Paper, check_named_claims, check_papers, read_papers
from gradwire.harness.report.parameters import Counts, models_in_words, parameters_of_each
from gradwire.harness.report.pictures import OF_SCORES, WITH_SCORES, Picture, guesses, in_results, pictures_of
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.summary import Outcome
from gradwire.harness.report.sweep_record import (
    SweepRecord,
    check_off_axes,
    find_sweep_records,
    read_sweep_record,
)
from gradwire.harness.runtime.progress import tracked

REFERENCE = "reference"

USUAL_SIZE = "small"
"""The size whose records are kept here: minutes on two cores."""


@dataclass(frozen=True)
class Recorded:
    """A record and its path relative to the folder of the results."""

    folder: Path
    record: SweepRecord


@dataclass(frozen=True)
class ShownItem:
    """An item of a paper, with the data from the records."""

    item: Item
    source: Recorded | None
    table: PaperTable | None
    pictures: list[Picture]
    models: str = ""  # those of the figures, or of the whole record, with parameters
    seeds: int = 0  # of the same runs
    guessed: tuple[str, ...] = ()  # captions of plots left out because all of their curves guess

    @property
    def command(self) -> str:
        """The command that produces the item; empty if no sweep does."""
        size = self.source.record.size if self.source is not None else USUAL_SIZE
        return f"python run.py sweeps={self.item.sweep} size={size}" if self.item.sweep is not None else ""

    @property
    def reasons(self) -> list[str]:
        """Reasons why the item is missing, or parts of it."""
        found = [self.item.why] if self.item.why else []
        sweep = self.item.sweep
        if sweep is not None and self.source is None:
            found.append("not run")
        elif self.table is not None and not self.table.seen:
            found.append(
                f"{sweep} at size={self.source.record.size} has none of these cells" if self.source else ""
            )
        elif self.item.plots and not self.pictures and not self.guessed:
            found.append(f"{sweep} has left no plot {', '.join(self.item.plots)}")
        return found


@dataclass(frozen=True)
class Section:
    """One paper."""

    paper: Paper
    verdicts: list[Verdict]
    shown: list[ShownItem]
    not_run: list[tuple[str, str]]
    """(what, why) of its sweeps' sizes and cells that have no record."""

    def of_kind(self, kind: str) -> list[ShownItem]:
        return [each for each in self.shown if each.item.kind == kind]

    @property
    def outcome(self) -> Outcome:
        """Its verdicts for the summary."""
        return Outcome(self.verdicts, self.paper.topics)

    @property
    def pictured(self) -> tuple[ShownItem, Picture] | None:
        """The first plot without scores of guesses, of the items that the summary may show; None if there is
        no such plot."""
        for name in self.paper.picture:
            for each in self.shown:
                telling = [picture for picture in each.pictures if not picture.guesses]
                if each.item.name == name and telling:
                    return each, telling[0]
        return None

    @property
    def claims(self) -> list[tuple[str, list[Verdict]]]:
        """Verdicts by subject: those about runs, those of our own model, and those about printed figures."""
        groups = (
            ("Claims about runs", (Basis.RUNS, Basis.NOTHING)),
            ("Identities and arithmetic of the model", (Basis.MODEL,)),
            ("The paper's figures held against one another", (Basis.PAPER,)),
        )
        found = [
            (title, [each for each in self.verdicts if each.claim.basis in bases]) for title, bases in groups
        ]
        return [(title, verdicts) for title, verdicts in found if verdicts]

    @property
    def untold(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """(reason, [(detail, ids of claims)]) of what could not be told, what most claims share first."""
        reasons: dict[str, dict[str, list[str]]] = {}
        for verdict in self.verdicts:
            if verdict.word in (Word.NOT_TESTABLE, Word.NOT_RUN):
                # A resolution differs from claim to claim, and stands beside its verdict.
                detail = "" if verdict.reason == Reason.SPREAD else resolution(verdict)
                details = reasons.setdefault(str(verdict.reason or verdict.word), {})
                details.setdefault(detail, []).append(verdict.claim.id)
        ordered = sorted(reasons.items(), key=lambda each: -sum(map(len, each[1].values())))
        return [
            (reason, [(detail, ", ".join(ids)) for detail, ids in details.items()])
            for reason, details in ordered
        ]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """(names, reason) of items, sizes and cells that have not run, or of which parts are missing."""
        items: dict[str, list[str]] = {}
        for each in self.shown:
            if each.reasons:
                items.setdefault("; ".join(each.reasons), []).append(each.item.name)
        return [("; ".join(names), reason) for reason, names in items.items()] + self.not_run


@dataclass(frozen=True)
class Evaluations:
    """All contents; `left_out` has a line for each record or plot that is damaged or refused."""

    folder: Path
    sections: list[Section]
    records: list[Recorded]
    gpus: list[GpuRecord]
    left_out: list[str]


def collect(folder: Path, sweeps: Mapping[str, KnownSweep]) -> Evaluations:
    """Reads the records, papers and printed figures below `folder` and judges the papers' claims.

    `sweeps` are those that can run. Raises ValueError in one line for a claim or a paper's item that is
    malformed or refers to something that does not exist. A damaged record, or one whose cells differ in other
    settings than the axes, is reported and left out.
    """
    records, left_out = _records(folder)
    known = _known(sweeps, records)
    reference = Reference(folder / REFERENCE)
    papers = read_papers(folder)
    check_papers(papers, known, reference)
    by_sweep: dict[str, list[Recorded]] = {}
    for each in records:
        by_sweep.setdefault(each.record.name, []).append(each)
    plain = {name: [each.record for each in found] for name, found in by_sweep.items()}
    folders, plain_records = [each.folder for each in records], [each.record for each in records]
    counts = dict(zip(folders, parameters_of_each(plain_records), strict=True))
    sections = []
    for paper in tracked(papers, "report: judging claims", "paper", lambda paper: paper.name):
        verdicts = [
            judge(claim, plain, reference, known)
            for each in CLAIMS
            if each.paper == paper.name
            for claim in each.found
        ]
        check_named_claims(paper, [verdict.claim.id for verdict in verdicts])
        shown = [_shown(item, by_sweep, folder, reference, left_out, counts) for item in paper.items]
        names = [*(item.sweep for item in paper.items), *(name for v in verdicts for name in v.claim.sweeps)]
        open_ = not_run((name for name in names if name is not None), known, plain)
        sections.append(Section(paper, verdicts, shown, open_))
    return Evaluations(folder, sections, records, _gpus(folder, left_out), list(dict.fromkeys(left_out)))


def _gpus(folder: Path, left_out: list[str]) -> list[GpuRecord]:
    """The records of GPUs; a damaged folder gets a line in `left_out`."""
    found = []
    for path in gpu_folders(folder):
        try:
            found.append(read_gpu_record(path))
        except ValueError as error:
            left_out.append(f"{path.relative_to(folder)}: {in_results(error, folder)}")
    return found


def _records(folder: Path) -> tuple[list[Recorded], list[str]]:
    found, left_out = [], []
    for path in tracked(list(find_sweep_records(folder)), "report: reading", "record"):
        below = path.relative_to(folder)
        try:
            record = read_sweep_record(path)
            check_off_axes(record)
        except ValueError as error:
            left_out.append(f"{below}: {in_results(error, folder)}")
            continue
        found.append(Recorded(below, record))
    return found, left_out


def _known(sweeps: Mapping[str, KnownSweep], records: Sequence[Recorded]) -> Known:
    known = {name: sweep.copy() for name, sweep in sweeps.items()}
    for each in records:
        known.setdefault(each.record.name, KnownSweep()).add_record(each.record)
    return known


def _shown(
    item: Item,
    by_sweep: Mapping[str, Sequence[Recorded]],
    folder: Path,
    reference: Reference,
    left_out: list[str],
    counts: Mapping[Path, Counts],
) -> ShownItem:
    found = sorted(by_sweep.get(item.sweep or "", ()), key=lambda each: rank(each.record.size))
    source = found[-1] if found else None
    table = None
    if item.table is not None:
        table = fill(item.table, source.record if source is not None else None, reference)
    if source is None:
        return ShownItem(item, source, table, [])
    pictures = pictures_of(item, folder / source.folder, folder, left_out)
    guessed = [each for each in pictures if guesses(each, source.record, OF_SCORES)]
    kept = [
        replace(each, guesses=guesses(each, source.record, WITH_SCORES))
        for each in pictures
        if each not in guessed
    ]
    cells = [each for each in source.record.cells if table is None or each.label in table.labels]
    models = models_in_words(source.record, cells, counts[source.folder])
    seeds = len({cell.seed for cell in cells} - {None})
    return ShownItem(item, source, table, kept, models, seeds, tuple(each.caption for each in guessed))
