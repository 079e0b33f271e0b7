"""The papers' figures, as far as results/reference has them."""

from __future__ import annotations

import csv
from functools import cache

from gradwire.harness.config.compose import conf_directory


def published(paper: str, table: str, method: str) -> list[dict[str, str]]:
    """The rows about a method in a paper's table; none if the table is not at hand."""
    return [row for row in _rows(paper, table) if row["method"] == method]


@cache
def _rows(paper: str, table: str) -> list[dict[str, str]]:
    path = conf_directory().parent / "results" / "reference" / paper / f"{table}.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
