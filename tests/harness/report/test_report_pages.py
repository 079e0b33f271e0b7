"""`task=report`: two pages from records alone, whole, the same each time, and refused in one line."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from sweep_records import cell, record

from gradwire.harness.config.declared import Declared
from gradwire.harness.files.compressed import compressed
from gradwire.harness.record.settings import TaskConfig
from gradwire.harness.report import evaluations
from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import Effects, below, falls
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.evaluation import ClaimError
from gradwire.harness.report.frame import Value
from gradwire.harness.report.page import FRONT_BEGIN, FRONT_END
from gradwire.harness.report.papers import read_papers
from gradwire.harness.report.reference import COLUMNS
from gradwire.harness.report.settings import ReportConfig, ReportTask
from gradwire.harness.report.sweep_record import VALUES, SweepRecord, save_sweep_record
from gradwire.harness.report.tables import escaped
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.sweeps.known import known_sweep, known_sweeps
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


MOST_PAGE = 6_000_000
"""Bytes of the page with all figures."""

DRAWN = '<defs><path id="m1" d="m0 0v1"/></defs><g fill="#000000"><use href="#m1" x="2"/></g>'

PAPER = """
name: A Paper
title: "A Paper: how to be reproduced"
lead: Its models are <small>, and guess.
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


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, about which these claims are made."""
    monkeypatch.setattr(evaluations, "CLAIMS", (MADE_UP,))
    return write_results(tmp_path / "results")


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


def test_both_pages_have_it_all(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(results) == 0
    said = capsys.readouterr().out
    assert (
        "A Paper: 2 informative verdicts: 1 reproduced, 1 not; all by claims written after their records"
        in said
    )
    assert "(4 claims: 1 reproduced, claim written after the record, 1 not reproduced, claim written" in said
    readme, page = (results / "README.md").read_text(), (results / "report.html").read_text()
    assert (
        readme.startswith("# Mine\n\nOther results.")
        and readme.endswith("End.\n")
        and "\nold\n" not in readme
    )
    assert "| 4 bits | 0.0330 (0.0300–0.0360) | 0.02 | 3 (2–4) | 2.8 |" in readme
    assert "| MXFP8 | 0.00440 (0.00400–0.00480)†+ | &lt;0.01 |" in readme
    assert "ours, measured" in readme and "not reproduced" in readme and "no GPU here" in readme
    assert "diverged at step &lt;3&gt;" in readme and "&lt;MXFP8&gt;" in page
    assert "cells of several versions of the sources (aaaa, bbbb)" in readme
    assert "<code>python run.py sweeps=made_up size=small</code>" in readme
    assert "made_up" not in page.split("What has not run")[1].split("</section>")[0]
    for part in ("Table 1", "Figure 1", "Figure 2", "a codec", "P1", "P4", "1234567", "A processor, 2 cores"):
        assert part in readme and part in page
    assert "| reproduced ‡ |" in readme and "| consistent |" in readme
    opening = readme.split("### A Paper: how to be reproduced")[1].split("#### Claims about runs")[0]
    assert "2 informative verdicts: 1 reproduced, 1 not" in opening, (
        "a section opens with what could not be told"
    )
    assert "| not run | P3 | no GPU here |" in opening
    printed_alone = readme.split("#### The paper's figures held against one another")[1].split("####")[0]
    assert "| P4 |" in printed_alone and "| P1 |" not in printed_alone
    assert page.count('role="img"') == page.count('<use href="#m1"') == 2  # tta and metric-end, not bits
    assert page.count('<path id="m1"') == 1
    assert page.count('src="data:image/png;base64,') == 1


def with_scores(results: Path) -> None:
    """Adds Figure 3, which has a panel of scores, and lets the summary choose."""
    paper, place = results / "papers" / "paper.yaml", results / "made_up" / "small"
    item = "Figure 3: {kind: figure, says: over workers; of three, sweep: made_up, plots: [over-workers]}"
    choice = "picture: [Figure 2, Figure 3, Figure 1]"
    paper.write_text(PAPER.replace("items:", f"{choice}\nitems:").rstrip() + f"\n  {item}\n")
    shutil.copy(place / "tta-print.svg", place / "over-workers-print.svg")


def test_a_section_begins_with_its_lead(results: Path) -> None:
    with_scores(results)
    report(results)
    readme, page = (results / "README.md").read_text(), (results / "report.html").read_text()
    section = readme.split("### A Paper: how to be reproduced\n")[1].split("#### ")[0]
    assert section.strip().startswith("**Its models are &lt;small&gt;, and guess.**")
    opening = page.split("<h2>A Paper: how to be reproduced</h2>")[1].lstrip()
    assert opening.startswith('<p class="first">Its models are &lt;small&gt;, and guess.</p>')
    assert "<p>Of three.</p>" in page and "A Paper Figure 3: over workers</h4>" in page


@pytest.mark.parametrize("scores", [(0.25, 0.262), (0.25, 0.6)])
def test_the_summary_shows_no_picture_with_scores_of_guesses(
    results: Path, scores: tuple[float, float]
) -> None:
    """Figure 3 has a panel of scores; where these are at chance the next item's plot is shown instead."""
    with_scores(results)
    place, found = results / "made_up" / "small", made_up()
    about = {"dataset.name": "mmlu", "eval.max_sequences": 256}
    settings = {task: {**own, **about} for task, own in found.settings.items()}
    cells = [replace(each, metric="accuracy") for each in found.cells]
    values = [
        Value(each.label, "train", "accuracy", score, seed=each.seed, step=step)
        for each in cells
        if each.done
        for step, score in enumerate(scores)
    ]
    save_sweep_record(place, replace(found, cells=cells, settings=settings, values=(*found.values, *values)))
    report(results)
    page = (results / "report.html").read_text()
    shown = page.split('<section id="summary"')[1].split("</section>")[0]
    guess = scores[1] < 0.3
    assert ("Figure 3</a>: over workers" in shown) is not guess
    assert ("the scores in it are those of guesses" in page) is guess


def test_times_of_a_busy_machine_are_marked_in_tables_and_verdicts(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made_up()
    foil = swap({"bits": 5}, codec=("mxfp8", "dynamiq"))
    cells = [replace(each, computation="same", workers=2) for each in found.cells]
    seconds = [Value(each.label, "train", "compute_s", 0.1 + 0.1 * each.seed) for each in cells if each.done]
    busy = replace(found, cells=cells, values=(*found.values, *seconds))
    save_sweep_record(results / "made_up" / "small", busy)
    timed = Claims("A Paper")

    @timed.on("made_up")("P5", "Table 1", foil=foil)
    def _(e: Evidence) -> Effects:
        """It is fast."""
        return below(1 / e.rounds_per_second(codec="mxfp8"), 2.0)

    monkeypatch.setattr(evaluations, "CLAIMS", (MADE_UP, timed))
    assert report(results) == 0
    said = "Busy machine: the same computation took 100 ("
    for name in ("README.md", "report.html"):
        page = (results / name).read_text()
        assert page.count(said) == 2, "of the table, which has times, and of the claim about them"
        assert "no codec fails it" in page.split("It is fast.")[1].split(said)[0], "the verdict stays"


def test_the_committed_page_has_the_claims_as_they_are() -> None:
    """A claim that is changed goes to the page with the next task=report."""
    results = conf_directory().parent / "results"
    readme = (results / "README.md").read_text()
    claims = [claim for each in evaluations.CLAIMS for claim in each.found]
    lines = [f"| {escaped(claim.id)} | {escaped(claim.says)} |" for claim in claims]
    assert not [line for line in lines if line not in readme], "run: python run.py task=report"


def test_the_page_is_self_contained_and_the_same_each_time(results: Path, tmp_path: Path) -> None:
    report(results)
    page, readme = (results / "report.html").read_bytes(), (results / "README.md").read_bytes()
    report(results)
    assert ((results / "report.html").read_bytes(), (results / "README.md").read_bytes()) == (page, readme)
    moved = results.rename(tmp_path / "elsewhere")
    report(moved, tmp_path / "out")
    assert (tmp_path / "out" / "report.html").read_bytes() == page
    assert (tmp_path / "out" / "README.md").read_text().startswith("# Results\n")
    text = page.decode()
    assert "<script" not in text and "@import" not in text and "url(" not in text
    addresses = re.findall(r'(?:src|srcset|href)="([^"]*)"', text)
    assert addresses and all(address.startswith(("data:", "#")) for address in addresses)
    anchors = set(re.findall(r'id="([^"]*)"', text))
    assert {address[1:] for address in addresses if address.startswith("#")} <= anchors


def test_a_damaged_record_is_named_and_left_out(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = results / "made_up" / "small"
    shutil.copytree(good, results / "made_up" / "gpu")
    damaged = results / "made_up" / "gpu" / VALUES
    damaged.write_bytes(compressed(gzip.decompress(damaged.read_bytes()).decode().replace("0.03", "0.01")))
    mixed = made_up()
    odd = [replace(each, off_axes={"train.lr": index}) for index, each in enumerate(mixed.cells[:2])]
    save_sweep_record(results / "mixed", replace(mixed, name="mixed", cells=[*odd, *mixed.cells[2:]]))
    assert report(results) == 1
    said = capsys.readouterr().out
    assert f"left out: made_up/gpu: made_up/gpu/{VALUES}: differs from its digest in sweep.json" in said
    assert "left out: mixed: the cells of mixed differ in train.lr, which is not an axis" in said
    readme = (results / "README.md").read_text()
    assert "Left out: made_up/gpu" in readme and "Left out: mixed" in readme and "0.0330" in readme


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("papers/paper.yaml", "codec: mxfp8", "codec: mxfp9", "A Paper Table 1: made_up has no codec=mxfp9"),
        (
            "papers/paper.yaml",
            "metric: vnmse",
            "metric: vmnse",
            "A Paper Table 1: vmnse is not a metric of made_up",
        ),
        (
            "papers/paper.yaml",
            "sweep: made_up",
            "sweep: made_down",
            "A Paper Table 1: made_down is not a sweep",
        ),
        ("papers/paper.yaml", "{method: 5b}", "{method: 9b}", "has no method=9b"),
        ("papers/paper.yaml", "paper/table1", "paper/table2", "paper/table2 is not one of the"),
        ("papers/paper.yaml", "why: a diagram", "where: ''", "Figure 2 needs a table, plots, where"),
        ("papers/paper.yaml", "where: codecs/", "place: codecs/", "a codec has place, which no item has"),
        ("papers/paper.yaml", "columns:", "columnes:", "Table 1 has columnes, which no layout has"),
        ("README.md", "<!-- end of evaluations -->", "", "README.md has no lines"),
        ("reference/paper/table1.csv", "paper,item", "item,paper", "does not begin with the columns"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(
    results: Path, name: str, old: str, new: str, said: str
) -> None:
    path = results / name
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=said) as refused:
        report(results)
    assert "\n" not in str(refused.value) and not (results / "report.html").exists()


def test_a_claim_about_what_does_not_exist_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims("A Paper")
    claims.on("made_up")("P2", "Table 1", size="paper")(
        lambda e: below(e.vnmse(codec="dynamiq", bits=7), 1.0)
    )
    monkeypatch.setattr(evaluations, "CLAIMS", (claims,))
    with pytest.raises(ClaimError, match="claim P2: made_up has no codec.bits=7; it has 4, 5, None"):
        report(results)
    assert not (results / "report.html").exists()


def test_every_paper_with_claims_has_its_items() -> None:
    papers = {paper.name for paper in read_papers(conf_directory().parent / "results")}
    assert papers == {claims.paper for claims in evaluations.CLAIMS}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="report.folder=.*none is not a folder"):
        report(tmp_path / "none")


@pytest.mark.parametrize("output", ["/dev/null", "/proc/x"])
def test_an_output_that_cannot_be_made_is_refused_first(results: Path, output: str) -> None:
    with pytest.raises(ValueError, match=f"report.output={output} cannot be made .*; choose another folder"):
        report(results, Path(output))


def test_sweeps_that_can_run_are_known_by_their_files() -> None:
    known = known_sweeps()
    budgets = known["dynamiq_table4"]
    assert {3, 4, 5, 6} <= set(budgets.axes["codec.bits"])
    assert {"gemma1b", "llama1b_mmlu"} <= set(budgets.axes["model"])
    assert budgets.key("rate_mbit") == "network.rate_mbit" and budgets.shared["topology"] == ["ring"]
    budgets.check_value("dynamiq_table4", "codec.bits", 5)
    with pytest.raises(ValueError, match="dynamiq_table4 has no codec=powersgd; it has bf16, mxfp8, dynamiq"):
        budgets.check_value("dynamiq_table4", "codec", "powersgd")


def test_a_case_that_sets_no_field_leaves_its_default() -> None:
    taken = {"from": "warm", "take": "gradients", "step": [2, 9]}
    cases = [{"codec": "dynamiq", "gradients": taken}, {"codec": "dynamiq", "codec.group": 32}]
    known = known_sweep(Declared({"any": cases}, needs={"warm": "demo"}), {"topology": "ring"})
    assert known.axes["codec.group"] == [32, 16]
    assert known.axes["gradients"] == ["warm:step2", "warm:step9"]
    assert known.shared == {"topology": ["ring"]}


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_it_at_every_width(results: Path, tmp_path: Path) -> None:
    from matplotlib.image import imread

    report(results)
    for width in (1280, 390):
        picture = tmp_path / f"{width}.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--screenshot={picture}",
        ]
        page = (results / "report.html").as_uri()
        subprocess.run(
            [
                str(CHROMIUM),
                *options,
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width},900",
                page,
            ],
            capture_output=True,
            timeout=120,
            check=True,
        )
        seen = imread(picture)
        ink = (abs(seen[..., :3] - seen[0, 0, :3]).max(axis=-1) > 0.3).mean()
        assert 0.01 < ink < 0.4, f"{width}: {ink:.3f} of the picture is not background"


def test_the_committed_results_can_be_reported(tmp_path: Path) -> None:
    """The claims, papers and printed figures of this repository are sound, whatever has been recorded."""
    here = Path(__file__).resolve().parents[3] / "results"
    assert report(here, tmp_path / "out") == 0
    assert json.dumps((tmp_path / "out" / "README.md").read_text())
    said = (tmp_path / "out" / "README.md").read_text()
    front = (here.parent / "README.md").read_text().split(FRONT_BEGIN)[1].split(FRONT_END)[0]
    lines = [line.partition(")**: ")[2] or line for line in front.split("What codecs take")[0].splitlines()]
    assert len(lines) >= 6 and not [line for line in lines if line not in said], (
        "run: python run.py task=report"
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert len(page.encode()) <= MOST_PAGE
    assert page.count("<figure id=") == page.count("<figcaption>") > 50
    assert page.count('role="img"') + page.count('loading="lazy"') == page.count("<figure id=")
