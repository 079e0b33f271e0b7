"""The docs' generated tables are what the code generates today."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.codecs.registry import codec_classes
from gradwire.harness.report.catalogue import HEADER, TABLES, codec_table, replaced

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table_of_today(name: str) -> None:
    text = (ROOT / TABLES[name][0]).read_text()
    assert replaced(text, name) == text, "run: python -m gradwire.harness.report.catalogue"


def test_every_codec_of_the_package_has_a_full_row() -> None:
    rows = [line.strip("| ").split(" | ") for line in codec_table().splitlines()[2:]]
    own = [name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")]
    assert [row[0] for row in rows] == [f"`{name}`" for name in own]
    assert all(len(row) == len(HEADER) and all(cell.strip() for cell in row) for row in rows)


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- codecs"):
        replaced("# gradwire\n", "codecs")
