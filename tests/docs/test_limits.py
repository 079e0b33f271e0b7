"""The memory that limits.md gives for each model follows from its number of parameters."""

from __future__ import annotations

from pages import ROOT

UNITS = {"M": 1e6, "B": 1e9}
STATE, BUCKETS = 16, 4
"""Bytes per parameter in float32: weights, gradients and two moments; DDP's buckets."""


def rows(page: str, columns: int) -> dict[str, list[str]]:
    """The rows of a page's tables with a model's name in front, by that name."""
    found = {}
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == columns:
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_memory_is_that_of_the_parameters() -> None:
    models = rows("harness/models/README.md", 5)
    table = {name: cells for name, cells in rows("docs/limits.md", 4).items() if name in models}
    assert len(table) >= 5
    for name, (parameters, state, with_buckets) in table.items():
        assert parameters == models[name][1], name
        count = float(parameters[:-1]) * UNITS[parameters[-1]]
        assert state == f"{STATE * count / 1e9:.0f} GB", name
        assert with_buckets == f"{(STATE + BUCKETS) * count / 1e9:.0f} GB", name


def test_the_models_that_do_not_fit_are_named() -> None:
    """Every preset that needs more than 80 GB before its activations stands in the table."""
    table = rows("docs/limits.md", 4)
    for name, cells in rows("harness/models/README.md", 5).items():
        if STATE * float(cells[1][:-1]) * UNITS[cells[1][-1]] > 80e9:
            assert name in table
