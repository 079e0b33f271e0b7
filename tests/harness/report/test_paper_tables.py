"""A paper's table: the last evaluation, and changes against the baseline, paired by seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sweep_records import record

from gradwire.harness.report.frame import Value
from gradwire.harness.report.paper_tables import NOTHING, fill
from gradwire.harness.report.papers import Item, Line, TableLayout
from gradwire.harness.report.parameters import models_in_words
from gradwire.harness.report.reference import COLUMNS, Reference
from gradwire.harness.report.sweep_record import SweepRecord
from gradwire.harness.report.table_networks import in_common_and_apart

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


def test_the_line_of_a_table_speaks_of_its_own_cells_alone(reference: Reference) -> None:
    """A record may have further models and seeds."""
    rows = [({"codec": "bf16", "model": "gpt2"}, 0, {"vnmse": 0.1})]
    rows += [({"codec": "bf16", "model": "minilm_glue"}, seed, {"vnmse": 0.2}) for seed in (0, 1, 2)]
    found = record(("codec", "model"), rows)
    lines = {"GPT-2": Line(ours={"model": "gpt2"})}
    table = fill(TableLayout(lines, {"vNMSE": Line(metric="vnmse")}), found, reference)
    cells = [each for each in found.cells if each.label in table.labels]
    assert [(each.axes["model"], each.seed) for each in cells] == [("gpt2", 0)]
    counts = {("small", "gpt2"): 141_056, ("small", "minilm_glue"): 22_713_216}
    assert models_in_words(found, cells, counts) == "GPT-2 (141k parameters)"
    assert models_in_words(found, found.cells, counts).endswith("; MiniLM, GLUE (22.7M parameters)")


def test_one_seed_has_no_interval(reference: Reference) -> None:
    cells = dict(fill(layout(), strategies(seeds=1), reference).rows)["qw"]
    assert cells[0].ours == "11" and cells[1].ours == NOTHING


def test_only_columns_of_which_the_paper_prints_any_figure_have_its_own(reference: Reference) -> None:
    error = {**layout().columns, "vNMSE": Line(metric="vnmse")}
    found = fill(replace(layout(), columns=error), strategies(), reference)
    assert found.printed == [True, True, False] and found.has_printed
    alone = fill(replace(layout(), columns=error), None, reference)
    assert alone.columns == ["loss", "change"] and [name for name, _ in alone.rows] == ["fp32", "qw"]
    unprinted = replace(layout(), reference=None, columns={"vNMSE": Line(metric="vnmse")})
    assert fill(unprinted, None, reference).rows == [] and not fill(unprinted, None, reference).has_printed


def test_headings_have_the_units_that_cells_do_not_have(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    lines = [f"paper,Table 1,,,{codec},,time,{codec[-1]},h," for codec in ("a1", "a2")]
    (tmp_path / "paper" / "table1.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    figures = {"train_time_s": 3.0, "loss": 2.5, "exposed_comm_s": 0.2, "wire_bits_per_coordinate": 5.0}
    rows = [({"codec": codec}, seed, figures) for codec in ("a1", "a2") for seed in (0, 1)]
    columns = {
        "training clock": Line(metric="train_time_s"),
        "loss": Line(metric="loss"),
        "waiting": Line(metric="exposed_comm_s", printed={"metric": "time"}),
        "wire bits per coordinate": Line(metric="wire_bits_per_coordinate"),
        "percent": Line(metric="loss", times=100),
    }
    lines_ = {codec: Line(ours={"codec": codec}, printed={"method": codec}) for codec in ("a1", "a2")}
    found = fill(
        TableLayout(lines_, columns, reference="paper/table1"), record(("codec",), rows), Reference(tmp_path)
    )
    assert found.units == ["s", "nats", "", "", ""], "200 ms has its unit; bits are in the name"
    assert found.printed_units == ["", "", "h", "", ""]
    assert dict(found.rows)["a1"][2].ours == "200 ms"


def test_a_benchmarks_scores_have_what_guesses_score_beside_them(reference: Reference) -> None:
    rows = [({"codec": codec}, 0, {}) for codec in ("fp32", "qw")]
    found = record(("codec",), rows)
    scored = [
        Value(each.label, "score", "acc", share, case=case, seed=0)
        for each in found.cells
        for case, share in (("piqa", 0.65), ("arc_easy", 0.48), ("mine", 0.4))
    ]
    cells = [replace(each, task="score") for each in found.cells]
    found = replace(found, cells=cells, values=tuple(scored), settings={"score": found.settings["train"]})
    columns = {case: Line(ours={"case": case}) for case in ("piqa", "arc_easy", "mine")}
    lines = {codec: Line(ours={"codec": codec}) for codec in ("fp32", "qw")}
    table = fill(TableLayout(lines, columns, metric="acc"), found, reference)
    assert [cell.ours for cell in dict(table.rows)["qw"]] == ["65.00 %", "48.00 %", "40.00 %"]
    assert table.chances == ["guesses: 50 %", "guesses: 25 %", ""]


def test_an_accuracy_is_in_percent_in_its_cell_or_by_its_heading(reference: Reference) -> None:
    rows = [({"codec": "fp32"}, seed, {"final_metric": 0.84 + seed / 100}) for seed in range(3)]
    columns = {"score": Line(), "score [%]": Line(times=100)}
    lines = {"fp32": Line(ours={"codec": "fp32"})}
    found = record(("codec",), rows, metric="accuracy")
    table = fill(TableLayout(lines, columns, metric="final_metric"), found, reference)
    assert [cell.ours for cell in dict(table.rows)["fp32"]] == ["85 (84–86) %", "85 (84–86)"]


V100, H100 = "modelled, v100, 32 Gbit/s, 5 µs", "modelled, h100, 400 Gbit/s, 5 µs"


@pytest.mark.parametrize(
    ("networks", "said"),
    [
        ({"fp32": [V100], "edgc": [V100]}, ["modelled, v100, 32 Gbit/s, 5 µs"]),
        (
            {"V100: fp32": [V100], "V100: edgc": [V100], "H100: fp32": [H100], "H100: edgc": [H100]},
            ["modelled, 5 µs", "V100: v100, 32 Gbit/s", "H100: h100, 400 Gbit/s"],
        ),
        (
            {"V100": [V100], "error on V100": [V100], "H100": [H100], "none": []},
            ["modelled, 5 µs", "H100: h100, 400 Gbit/s", "others: v100, 32 Gbit/s"],
        ),
        (
            {"fp32": [V100], "edgc": [V100], "tied": [H100], "own": [H100]},
            ["modelled, 5 µs", "fp32 and edgc: v100, 32 Gbit/s", "tied and own: h100, 400 Gbit/s"],
        ),
        ({"fp32": [V100, H100], "edgc": [V100, H100]}, [f"{V100} and {H100}"]),
        (
            {"10 Gbit/s": ["modelled, 10 Gbit/s"], "as it is": ["modelled"]},
            ["modelled", "10 Gbit/s"],
        ),
        ({"fp32": []}, []),
    ],
)
def test_what_networks_have_in_common_stands_once(networks: dict[str, list[str]], said: list[str]) -> None:
    assert in_common_and_apart(networks) == said


def test_a_heading_ends_at_the_first_pause() -> None:
    item = Item("Table 1", "table", "losses of qW; ours of 0.1M parameters. Three seeds")
    assert (item.heading, item.more) == ("losses of qW", "Ours of 0.1M parameters. Three seeds.")
    assert (Item("Table 2", "table", "speed").heading, Item("Table 2", "table", "speed").more) == (
        "speed",
        "",
    )
