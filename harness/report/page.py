"""What comparisons share: tables and remarks as one page, and which folders of a sweep have figures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.directory import is_done
from gradwire.harness.report.tables import Table, escaped, render_markdown, render_remark, render_text


@dataclass(frozen=True)
class Page:
    """Tables, and what a reader of them must know."""

    tables: list[Table]
    remarks: list[str]

    @property
    def text(self) -> str:
        """For a terminal: at most 140 columns, longer paths excepted."""
        return "\n\n".join([*map(render_text, self.tables), "\n".join(map(render_remark, self.remarks))])

    @property
    def markdown(self) -> str:
        remarks = "\n".join(f"- {escaped(line)}" for line in self.remarks)
        return "\n\n".join([*map(render_markdown, self.tables), "### Notes", remarks]) + "\n"

    def write(
        self, output: Path, lines: Sequence[Mapping[str, Any]], content: Mapping[str, Any]
    ) -> list[Path]:
        """Writes table.md, table.csv with a column for each key of `lines`, and table.json with `content`.

        Makes `output` where it is not there; returns the files.
        """
        output.mkdir(parents=True, exist_ok=True)
        files = [output / "table.md", output / "table.csv", output / "table.json"]
        files[0].write_text(self.markdown)
        with files[1].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
            writer.writeheader()
            writer.writerows(lines)
        files[2].write_text(dumps(content, indent=2) + "\n")
        return files


def finished(folders: Sequence[Path], kind: str = "run") -> tuple[list[Path], list[str]]:
    """The folders whose run is done, and a line for each other one; ValueError if none is done.

    `kind` is what the error calls them.
    """
    done = [folder for folder in folders if is_done(folder)]
    left_out = [f"{folder.name}: not finished, left out" for folder in folders if folder not in done]
    if not done:
        raise ValueError(f"nothing to compare, no {kind} is done: {'; '.join(left_out) or 'no folder given'}")
    return done, left_out
