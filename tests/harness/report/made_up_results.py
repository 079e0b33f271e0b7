"""A folder of results that no run has made: a record with plots, a paper, its printed figures and claims."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
from sweep_records import cell, record

from gradwire.harness.record.settings import TaskConfig
from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import Effects, below, falls
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.reference import COLUMNS
from gradwire.harness.report.settings import ReportConfig, ReportTask
from gradwire.harness.report.sweep_record import SweepRecord, save_sweep_record
from gradwire.harness.tasks.report import run

MADE_UP = Claims("A Paper")
made_up_sweep = MADE_UP.on("made_up")


@made_up_sweep("P1", "Table 1", "0.02 > 0.005", foil=swap(bits=(4, None), codec=("dynamiq", "mxfp8")))
def _(e: Evidence) -> Effects:
    """Fewer bits give a larger error."""
    return falls(e.vnmse(codec="dynamiq", bits=b) for b in (4, 5))


@made_up_sweep("P2", "Section 2", "10 ×")
def _(e: Evidence) -> Effects:
    """DynamiQ has a tenth of <MXFP8>'s error."""
    return below(e.vnmse(codec="dynamiq", bits=5), e.vnmse(codec="mxfp8") / 10)


MADE_UP.without_predicate("P3", "Section 3", "It needs a GPU.", "", "no GPU here")


@MADE_UP.of_print()("P4", "Table 1")
def _(e: Evidence) -> bool:
    """The printed error falls."""
    small, large = ("5b", "4b")
    return e.paper("paper/table1", method=large, metric="vNMSE") > e.paper("paper/table1", method=small)


DRAWN = '<defs><path id="m1" d="m0 0v1"/></defs><g fill="#000000"><use href="#m1" x="2"/></g>'

PAPER = """
name: A Paper
title: "A Paper: how to be reproduced"
lead: Its models are <small>, and guess.
texts: {P2: On the <links> of Table 1 it has a tenth.}
remarks: {P1: It rests on <one> port.}
items:
  Table 1:
    kind: table
    says: error and speed
    sweep: made_up
    table:
      reference: paper/table1
      rows:
        4 bits: {ours: {codec: dynamiq, bits: 4}, printed: {method: 4b}}
        5 bits: {ours: {codec: dynamiq, bits: 5}, printed: {method: 5b}}
        MXFP8: {ours: {codec: mxfp8}, printed: {method: MXFP8}}
      columns:
        vNMSE: {metric: vnmse, printed: {metric: vNMSE}}
        rounds/s: {metric: rounds_per_second, printed: {metric: throughput}}
  Figure 1: {kind: figure, says: curves, sweep: made_up, plots: [tta, metric*, old]}
  Figure 2: {kind: figure, says: a diagram, why: a diagram}
  a codec: {kind: system, where: codecs/}
"""

PRINTED = "\n".join(
    [
        ",".join(COLUMNS),
        *("paper,Table 1,,,4b,,vNMSE,0.02,,", "paper,Table 1,,,5b,,vNMSE,0.005,,"),
        *("paper,Table 1,,,4b,,throughput,2.8,,", "paper,Table 1,,,MXFP8,,vNMSE,<0.01,,"),
    ]
)


def made_up() -> SweepRecord:
    rows = []
    for seed in (0, 1, 2):
        for codec, bits, error in (("dynamiq", 4, 0.03), ("dynamiq", 5, 0.006), ("mxfp8", None, 0.004)):
            figures = {"vnmse": error * (1 + seed / 10), "rounds_per_second": 2.0 + seed}
            rows.append(({"codec": codec, "codec.bits": bits}, seed, figures))
    failed = cell({"codec": "thc", "codec.bits": None}, status="failed", reason="diverged at step <3>")
    found = record(("codec", "codec.bits"), rows, more=[failed])
    other = replace(found.cells[2], code_hash="bbbb", dirty=True)
    return replace(found, cells=[*found.cells[:2], other, *found.cells[3:]])


def write_results(folder: Path) -> Path:
    """A folder of results with a record, its plots, a paper and printed figures."""
    place = folder / "made_up" / "small"
    save_sweep_record(place, made_up())
    (folder / "reference" / "paper").mkdir(parents=True)
    (folder / "reference" / "paper" / "table1.csv").write_text(PRINTED + "\n")
    (folder / "papers").mkdir()
    (folder / "papers" / "paper.yaml").write_text(PAPER)
    example = Path(matplotlib.get_data_path()) / "images" / "matplotlib.png"
    for name in ("tta-print.svg", "metric-end-print.svg", "bits-print.svg"):
        (place / name).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3">{DRAWN}</svg>')
    shutil.copy(example, place / "old-print.png")
    (folder / "README.md").write_text(
        "# Mine\n\nOther results.\n\n<!-- evaluations, made by task=report -->\nold\n"
        "<!-- end of evaluations -->\nEnd.\n"
    )
    return folder


def report(folder: Path, output: Path | None = None) -> int:
    settings = ReportConfig(folder=str(folder), output=None if output is None else str(output))
    return run(ReportTask(task=TaskConfig("report"), report=settings))
