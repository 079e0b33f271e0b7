"""The docs' generated tables are what the code generates today."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.codecs.registry import codec_classes
from gradwire.codecs.traits import GROUPS
from gradwire.harness.report.catalogue import HEADER, TABLES, codec_groups, codec_table, replaced

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table_of_today(name: str) -> None:
    text = (ROOT / TABLES[name][0]).read_text()
    assert replaced(text, name) == text, "run: python -m gradwire.harness.report.catalogue"


def test_every_codec_of_the_package_has_a_full_row() -> None:
    """The row is in the table of its group."""
    lines = codec_table().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    own = [name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")]
    assert sorted(row[0] for row in rows) == sorted(f"`{name}`" for name in own)
    assert [line for line in lines if line.startswith("**")] == [
        f"**{group.capitalize()}**" for group in GROUPS
    ]
    assert [len(names) for names in codec_groups().values()].count(0) == 0
    assert all(len(row) == len(HEADER) and all(cell.strip() for cell in row) for row in rows)


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the page lacks the markers <!-- codecs"):
        replaced("# gradwire\n", "codecs")
