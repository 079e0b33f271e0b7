"""`task=report`: two pages from records alone, whole, and the same each time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import MADE_UP, PAPER, made_up, report

from gradwire.harness.report import evaluations
from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import Effects, below
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.frame import Value
from gradwire.harness.report.page import FRONT_BEGIN, FRONT_END
from gradwire.harness.report.papers import read_papers
from gradwire.harness.report.sweep_record import save_sweep_record
from gradwire.harness.report.tables import escaped
from gradwire.harness.runtime.conf import conf_directory

MOST_PAGE = 6_000_000
"""Bytes of the page with all figures."""


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
    assert "diverged at step &lt;3&gt;" in readme and "&lt;links&gt; of Table 1" in page
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


def test_a_claim_has_what_it_refers_to_and_what_it_rests_on(results: Path) -> None:
    report(results)
    readme, page = (results / "README.md").read_text(), (results / "report.html").read_text()
    assert "| P2 | On the &lt;links&gt; of Table 1 it has a tenth. |" in readme
    assert "<td>On the &lt;links&gt; of Table 1 it has a tenth." in page
    assert "| reproduced ‡ | It rests on &lt;one&gt; port; error (vNMSE)" in readme
    row = page.split('<tr id="a-paper-p1">')[1].split("</tr>")[0]
    assert "<b>It rests on &lt;one&gt; port.</b>" in row and page.count("on &lt;one&gt; port") == 1


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
    rows = {line.split(" | ")[0]: line for line in readme.splitlines()}
    shown = [(each, rows.get(f"| {escaped(each.id)}", "")) for each in claims]
    texts = {name: text for paper in read_papers(results) for name, text in paper.texts.items()}
    missing = [each.id for each, row in shown if f"{escaped(texts.get(each.id, each.says))} |" not in row]
    assert not missing, "run: python run.py task=report"


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


def test_every_paper_with_claims_has_its_items() -> None:
    papers = {paper.name for paper in read_papers(conf_directory().parent / "results")}
    assert papers == {claims.paper for claims in evaluations.CLAIMS}


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
