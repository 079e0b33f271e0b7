"""Tables and remarks as one page, and which folders of a sweep have figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.harness.record.directory import DONE
from gradwire.harness.report.page import finished, page_markdown, page_text, write_page
from gradwire.harness.report.tables import Table

TABLES = [Table("A", ["run", "x"], [["a", "1"]]), Table("B", ["run", "y"], [["b", "2"]])]
REMARKS = ["first.", "second."]


def test_remarks_stand_under_all_tables() -> None:
    blocks = page_text(TABLES, REMARKS).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["A", "B", "first."]
    assert blocks[-1] == "first.\nsecond."
    assert page_text(TABLES, REMARKS, between="\n\n").endswith("\n\nfirst.\n\nsecond.")
    assert page_markdown(TABLES, REMARKS).endswith("\n\n### Notes\n\n- first.\n- second.\n")


def test_only_what_is_done_has_figures(tmp_path: Path) -> None:
    done, begun = tmp_path / "done", tmp_path / "begun"
    for folder in (done, begun):
        folder.mkdir()
    (done / DONE).write_text("")
    assert finished([begun, done]) == ([done], ["begun: not finished, left out"])
    with pytest.raises(ValueError, match=r"^nothing to compare, no replay is done: begun: not finished"):
        finished([begun], "replay")
    with pytest.raises(ValueError, match=r"no run is done: no folder given$"):
        finished([])


def test_a_page_is_written_where_no_folder_is(tmp_path: Path) -> None:
    write_page(tmp_path / "new" / "folder", "page\n", [{"x": 1.0}], ["begun"])
    written = tmp_path / "new" / "folder"
    assert (written / "table.md").read_text() == "page\n"
    assert json.loads((written / "table.json").read_text()) == {"rows": [{"x": 1.0}], "left_out": ["begun"]}
