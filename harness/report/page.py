"""What comparisons share: tables and remarks as one page, and which folders of a sweep have figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.directory import is_done
from gradwire.harness.report.tables import Table, escaped, render_markdown, render_remark, render_text


def page_text(tables: Sequence[Table], remarks: Sequence[str], between: str = "\n") -> str:
    """For a terminal: the tables, and under them the remarks with `between` from one to the next."""
    return "\n\n".join([*map(render_text, tables), between.join(map(render_remark, remarks))])


def page_markdown(tables: Sequence[Table], remarks: Sequence[str]) -> str:
    notes = "\n".join(f"- {escaped(line)}" for line in remarks)
    return "\n\n".join([*map(render_markdown, tables), "### Notes", notes]) + "\n"


def finished(folders: Sequence[Path], kind: str = "run") -> tuple[list[Path], list[str]]:
    """The folders whose run is done, and a line for each other one; ValueError if none is done.

    `kind` is what the error calls them.
    """
    done = [folder for folder in folders if is_done(folder)]
    left_out = [f"{folder.name}: not finished, left out" for folder in folders if folder not in done]
    if not done:
        raise ValueError(f"nothing to compare, no {kind} is done: {'; '.join(left_out) or 'no folder given'}")
    return done, left_out


def write_page(
    output: Path, markdown: str, rows: Sequence[Mapping[str, Any]], left_out: Sequence[str]
) -> None:
    """table.md, and table.json with the figures; `output` is made where it is not there."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "table.md").write_text(markdown)
    (output / "table.json").write_text(dumps({"rows": rows, "left_out": left_out}, indent=1) + "\n")
