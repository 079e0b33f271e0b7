"""Tables and remarks as one page, and which folders of a sweep have figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.tables import Page, Table, finished

PAGE = Page(
    [Table("A", ["run", "x"], [["a", "1"]]), Table("B", ["run", "y"], [["b", "2"]])], ["first.", "second."]
)


def test_remarks_stand_under_all_tables() -> None:
    blocks = PAGE.text.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["A", "B", "first."]
    assert blocks[-1] == "first.\nsecond."
    assert PAGE.markdown.endswith("\n\n### Notes\n\n- first.\n- second.\n")


def test_only_what_is_done_has_figures(tmp_path: Path) -> None:
    done, begun = tmp_path / "done", tmp_path / "begun"
    for folder in (done, begun):
        folder.mkdir()
    mark_done(done)
    assert finished([begun, done]) == ([done], ["begun: not finished, left out"])
    with pytest.raises(ValueError, match=r"^nothing to compare, no replay is done: begun: not finished"):
        finished([begun], "replay")
    with pytest.raises(ValueError, match=r"no run is done: no folder given$"):
        finished([])


def test_a_page_is_written_where_no_folder_is(tmp_path: Path) -> None:
    written = tmp_path / "new" / "folder"
    content = {"rows": [{"x": 1.0}], "left_out": ["begun"]}
    files = PAGE.write(written, [{"x": 1.0, "y": None}, {"z": float("inf")}], content)
    assert [file.name for file in files] == ["table.md", "table.csv", "table.json"]
    assert (written / "table.md").read_text() == PAGE.markdown
    assert (written / "table.csv").read_text().split() == ["x,y,z", "1.0,,", ",,inf"]
    assert json.loads((written / "table.json").read_text()) == content
