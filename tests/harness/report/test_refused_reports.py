"""`task=report` names and leaves out what is damaged, and refuses in one line what does not exist."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import made_up, report

from gradwire.harness.files.compressed import compressed
from gradwire.harness.report import evaluations
from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.effects import below
from gradwire.harness.report.evaluation import ClaimError
from gradwire.harness.report.sweep_record import VALUES, save_sweep_record


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
        ("papers/paper.yaml", "{P1: It", "{P9: It", "A Paper: remarks has P9, which is not a claim"),
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


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="report.folder=.*none is not a folder"):
        report(tmp_path / "none")


@pytest.mark.parametrize("output", ["/dev/null", "/proc/x"])
def test_an_output_that_cannot_be_made_is_refused_first(results: Path, output: str) -> None:
    with pytest.raises(ValueError, match=f"report.output={output} cannot be made .*; choose another folder"):
        report(results, Path(output))
