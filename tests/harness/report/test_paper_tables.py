"""A paper's table: the last evaluation, and changes against the baseline, paired by seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_records import record

from gradwire.harness.report.paper_tables import NOTHING, fill
from gradwire.harness.report.papers import Line, TableLayout
from gradwire.harness.report.reference import COLUMNS, Reference
from gradwire.harness.report.sweep_record import SweepRecord

LOSSES = {"fp32": (10.0, 12.0, 11.0), "qw": (11.0, 13.2, 12.1), "qwd": (10.1, 12.0, 10.89)}


def strategies(seeds: int = 3) -> SweepRecord:
    """Strategies whose perplexity begins at 100 and ends at LOSSES, by seed."""
    rows = [({"codec": codec}, seed, {"vnmse": 0.1}) for codec in LOSSES for seed in range(seeds)]
    curves = {
        f"codec={codec} seed={seed}": [(10, 1.0, 100.0), (20, 2.0, losses[seed])]
        for codec, losses in LOSSES.items()
        for seed in range(seeds)
    }
    return record(("codec",), rows, curves=curves)


def layout() -> TableLayout:
    lines = {codec: Line(ours={"codec": codec}, printed={"method": codec}) for codec in LOSSES}
    columns = {"loss": Line(last=True), "change": Line(last=True, change=True)}
    base = Line(ours={"codec": "fp32"}, printed={"method": "fp32"})
    return TableLayout(lines, columns, metric="perplexity", reference="paper/table1", baseline=base)


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    folder = tmp_path / "paper"
    folder.mkdir()
    lines = [f"paper,Table 1,,,{method},,loss,{value},," for method, value in (("fp32", 2.0), ("qw", 2.2))]
    (folder / "table1.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return Reference(tmp_path)


def test_a_change_is_the_mean_of_the_seeds_own_changes_with_its_interval(reference: Reference) -> None:
    """By hand: qwd's changes are 1, 0 and -1 %, whose mean is 0 ± 4.303 · 1/√3."""
    found = dict(fill(layout(), strategies(), reference).rows)
    texts = {name: [(cell.ours, cell.printed) for cell in cells] for name, cells in found.items()}
    assert texts["fp32"] == [("11 (10–12)", "2.0"), ("+0.00 ± 0.00 %", "+0.00 %")]
    assert texts["qw"][1] == ("+10.00 ± 0.00 %", "+10.00 %")
    assert texts["qwd"][1] == ("+0.00 ± 2.48 %", NOTHING)


def test_one_seed_has_no_interval(reference: Reference) -> None:
    cells = dict(fill(layout(), strategies(seeds=1), reference).rows)["qw"]
    assert cells[0].ours == "11" and cells[1].ours == NOTHING
