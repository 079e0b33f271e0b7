"""Comparisons of made-up runs whose figures are known."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradwire.harness.report import plots
from gradwire.harness.report.compare import Comparison, compare
from gradwire.harness.report.group_rows import GroupRow
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import PARTS

if TYPE_CHECKING:
    from conftest import SyntheticRuns


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots have tests of their own."""
    monkeypatch.setattr(plots, "plot_groups", lambda groups, folder: [])


def row_of(comparison: Comparison, label: str) -> GroupRow:
    return next(row for row in comparison.rows if row.label == label)


def test_figures_of_two_codecs(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(codec, seed) for codec in ("dynamiq", "bf16") for seed in (0, 1, 2)]
    finals = {"bf16": (20.0, 19.0, 21.0), "dynamiq": (20.5, 20.05, 30.0)}
    for folder in folders:
        codec, seed = folder.name.split("-seed")
        every_s = 2.0 if codec == "bf16" else 1.0
        runs.write_curve(folder, [40.0, 20.9, finals[codec][int(seed)]], every_s)
    comparison = compare(folders, tmp_path / "out", axes=["codec"])

    assert [row.label for row in comparison.rows] == ["bf16", "dynamiq"]
    bf16, dynamiq = comparison.rows
    assert bf16.final_metric == Spread(20.0, 19.0, 21.0)
    assert dynamiq.final_metric == Spread(20.5, 20.05, 30.0)
    assert [target.target for target in dynamiq.targets] == pytest.approx([21.0, 20.6, 20.2, 20.1])
    loose, middle, tight, _ = dynamiq.targets
    assert (loose.train_time_s, loose.steps, loose.reached) == (Spread(2, 2, 2), Spread(20, 20, 20), 3)
    assert loose.stays is False, "seed 2 ends at 30"
    assert loose.step_time_s == Spread(0.1, 0.1, 0.1)
    assert loose.p_faster == 1 / 8
    assert (middle.reached, middle.train_time_s) == (2, Spread(3.0, 3.0, math.inf))
    assert (tight.reached, tight.train_time_s.median, tight.steps.median) == (1, math.inf, math.inf)
    assert bf16.targets[0].train_time_s == Spread(4, 4, 4)
    assert bf16.targets[0].p_faster is None
    assert dynamiq.bytes_ratio == pytest.approx(5.1 / 16, rel=1e-4)
    assert dynamiq.figures["wire_bits_per_coordinate"] == Spread(5.1, 5.1, 5.1)
    sent = dynamiq.figures["bytes_per_step_per_rank"]
    assert sent is not None
    assert sent.median == pytest.approx(5.1 * 2 * 3 * 250_000 / 8 / 4, rel=1e-4)


def test_the_parts_of_the_table_sum_to_the_step(runs: SyntheticRuns, tmp_path: Path) -> None:
    row = compare([runs.write()], tmp_path / "out").rows[0]
    parts, step = [row.figures[part] for part in PARTS], row.figures["step_time_s"]
    assert step is not None
    assert sum(part.median for part in parts if part) == pytest.approx(step.median)


def test_overlap_has_a_table_where_it_was_measured(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write("bf16"), runs.write("dynamiq"), runs.write("thc")]
    assert "AQGB" not in compare(folders, tmp_path / "old", axes=["codec"]).text
    hidden = {"overlap_s": 0.0625, "wait_s": 0.125, "row": 0.5, "osf": 0.75, "utilization": 0.25}
    runs.change_summary(folders[0], **hidden)
    runs.change_summary(folders[1], **(hidden | {"wait_s": 0.0, "row": math.inf, "utilization": None}))
    comparison = compare(folders, tmp_path / "new", axes=["codec"])
    assert row_of(comparison, "bf16").figures["row"] == Spread(0.5, 0.5, 0.5)
    lines = comparison.text.splitlines()
    start = lines.index(
        "How well communication is hidden (AQGB; emulated, 200 Mbit/s, shaped by the kernel; wall clock)"
    )
    body = [line.split() for line in lines[start:] if line.split()[:1] in (["bf16"], ["dynamiq"], ["thc"])]
    assert body[0] == ["bf16", "62.5", "125", "0.500", "0.750", "25"]
    assert body[1] == ["dynamiq", "62.5", "0", "∞", "0.750", "–"]
    assert body[2] == ["thc", *"–––––"]
    assert "ROW: communication hidden" in comparison.text
    assert max(map(len, lines)) <= 140


def test_files_agree_with_the_rows(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(codec, seed) for codec in ("bf16", "mxfp4") for seed in (0, 1)]
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    assert [path.name for path in comparison.files] == ["table.md", "table.csv", "table.json"]
    with (tmp_path / "out" / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    mxfp4 = row_of(comparison, "mxfp4")
    assert [line["label"] for line in lines] == ["bf16", "mxfp4"]
    assert float(lines[1]["final_metric_median"]) == mxfp4.final_metric.median
    assert float(lines[1]["tta_x1.005_s_median"]) == math.inf
    assert lines[1]["seeds"] == "0 1"

    def refuse_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    content = json.loads((tmp_path / "out" / "table.json").read_text(), parse_constant=refuse_constant)
    assert content["rows"][1]["targets"][3]["train_time_s"]["median"] == "inf"
    assert content["rows"][1]["vnmse"]["median"] == mxfp4.figures["vnmse"].median  # type: ignore[union-attr]
    markdown = (tmp_path / "out" / "table.md").read_text()
    assert "not reached" in markdown
    assert all(line in markdown for line in comparison.notes)


def test_the_text_fits_a_terminal_and_says_which_clock(runs: SyntheticRuns, tmp_path: Path) -> None:
    codecs = ("bf16", "dynamiq", "mxfp8", "mxfp4", "thc", "omnireduce", "powersgd")
    folders = [runs.write(codec, seed) for codec in codecs for seed in (0, 1, 2)]
    text = compare(folders, tmp_path / "out", axes=["codec"]).text
    assert max(map(len, text.splitlines())) <= 140
    assert "Result (emulated, 200 Mbit/s, shaped by the kernel; wall clock)" in text
    assert "not reached" in text
    assert "step [ms]" in text


def test_wall_and_simulated_times_have_separate_tables(runs: SyntheticRuns, tmp_path: Path) -> None:
    real, virtual = runs.write(), runs.write(name="virtual", cluster={"name": "virtual", "workers": 4})
    runs.change_summary(virtual, clock="simulated")
    comparison = compare([real, virtual], tmp_path / "out", axes=["cluster"])
    titles = [table.title for table in comparison.tables if table.title.startswith("Result")]
    assert titles == [
        "Result (emulated, 200 Mbit/s, shaped by the kernel; wall clock)",
        "Result (modelled, 200 Mbit/s, shaped by the kernel; simulated clock: computation calibrated, "
        "measured or given, network modelled)",
    ]
    assert [(row.label, row.baseline) for row in comparison.rows] == [
        ("bf16, local", "bf16, local"),
        ("bf16, virtual", "bf16, virtual"),
    ], "no targets from the other clock"


def test_refuses_what_is_not_an_axis(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [
        runs.write(),
        runs.write("dynamiq"),
        runs.write(name="other", train={"steps": 100, "lr": 1e-3}),
    ]
    with pytest.raises(ValueError, match=r"codec\.bits") as caught:
        compare(folders, tmp_path / "out")
    message = str(caught.value)
    for part in ("codec.name", "bf16 in", "runs/dynamiq-seed0", "train.steps (200 in", "100 in runs/other"):
        assert part in message
    assert "seed (" not in message
    assert "timeout_s" not in message
    assert "\n" not in message
    assert "tracking" not in message
    assert not (tmp_path / "out").exists()
    compare(folders, tmp_path / "out", axes=["codec", "train.steps"])


def test_a_key_of_a_group_does_not_cover_the_group(runs: SyntheticRuns, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"codec\.name"):
        compare([runs.write(), runs.write("dynamiq")], tmp_path / "out", axes=["codec.bits"])


def test_refuses_different_machines(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(seed=seed) for seed in (0, 1)]
    runs.change_summary(folders[1], machine={"processor": "8 cores", "gpus": []})
    with pytest.raises(ValueError, match=r"machine\.processor \(16 cores in runs/bf16-seed0; 8 cores in"):
        compare(folders, tmp_path / "out")


def test_a_failed_run_has_no_machine_to_refuse(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(seed=0), runs.fail(runs.write(seed=1), "diverged")]
    assert compare(folders, tmp_path / "out").rows[0].num_seeds == 2


def test_what_was_not_recorded_is_not_zero(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(), runs.write("native", codec={"name": "native"})]
    runs.change_summary(folders[1], wire_bits_per_coordinate=None, bytes_sent_per_rank=[0] * 4)
    runs.change_summary(folders[1], compute_s=None, compression_s=None, exposed_comm_s=None, other_s=None)
    row = row_of(compare(folders, tmp_path / "out", axes=["codec"]), "native")
    assert row.figures["step_time_s"] is not None
    assert {row.figures[name] for name in (*PARTS, "bytes_per_step_per_rank")} == {None}
    assert row.bytes_ratio is None


def test_different_provenance_is_noted(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(), runs.write("dynamiq")]
    runs.change_summary(folders[1], code_hash="other", dirty=True, kernel_backend="default")
    told = " ".join(compare(folders, tmp_path / "out", axes=["codec"]).notes)
    assert "different versions of the sources" in told
    assert "uncommitted changes" in told
    assert "different kernels: cpu, default" in told


def test_refuses_the_same_experiment_twice(runs: SyntheticRuns, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are the same experiment with seed 0"):
        compare([runs.write(), runs.write(name="again")], tmp_path / "out")


def test_failed_and_missing_runs_are_named_and_failures_count(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(seed=seed) for seed in (0, 1)]
    folders += [runs.write("dynamiq", seed) for seed in (0, 1)]
    runs.fail(folders[3], "loss is NaN at step 57")
    unfinished = runs.write("dynamiq", seed=2)
    (unfinished / "DONE").unlink()
    comparison = compare([*folders, unfinished, tmp_path / "nowhere"], tmp_path / "out", axes=["codec"])
    row = row_of(comparison, "dynamiq")
    assert (row.seeds, row.failed_seeds, row.num_seeds) == ([0], [1], 2)
    assert row.final_metric.high == math.inf
    assert row.targets[0].train_time_s.high == math.inf
    assert row.targets[0].reached == 1
    told = "\n".join(comparison.left_out)
    assert "runs/dynamiq-seed1: failed, counted as a miss: loss is NaN at step 57" in told
    assert "runs/dynamiq-seed2: unfinished, left out: last recorded step: 199" in told
    assert "missing" in told
    assert str(tmp_path / "nowhere") in told
    assert told.split() == comparison.text.split()[-len(told.split()) :]
    assert "2 (1 failed)" in comparison.text


def test_a_codec_whose_seeds_all_failed_stays_in_the_table(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(), runs.fail(runs.write("mxfp4"), "diverged")]
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    row = row_of(comparison, "mxfp4")
    assert (row.clock, row.figures["step_time_s"], row.targets[0].reached) == (None, None, 0)
    line = next(line for line in comparison.text.splitlines() if line.startswith("mxfp4"))
    assert line.split()[1:5] == ["1", "(1", "failed)", "failed"]


def test_without_any_finished_run(runs: SyntheticRuns, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run is done: runs/bf16-seed0: failed, .*: diverged"):
        compare([runs.fail(runs.write(), "diverged")], tmp_path / "out")


def test_without_bf16_there_is_no_time_to_accuracy(runs: SyntheticRuns, tmp_path: Path) -> None:
    comparison = compare([runs.write("dynamiq")], tmp_path / "out")
    assert comparison.rows[0].targets == []
    assert "TTA" not in comparison.text.split("Figures")[0]
    assert any("no finished bf16 run" in line for line in comparison.notes)


def test_diverged_bf16_sets_no_targets(runs: SyntheticRuns, tmp_path: Path) -> None:
    folder = runs.write()
    runs.write_curve(folder, [20.0, math.nan])
    comparison = compare([folder], tmp_path / "out")
    assert comparison.rows[0].final_metric.median == math.inf
    assert any("No targets from bf16" in line and "inf" in line for line in comparison.notes)


def test_targets_come_from_the_same_topology(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = []
    for topology, final in (("ring", 20.0), ("butterfly", 10.0)):
        for codec in ("bf16", "dynamiq"):
            folders.append(runs.write(codec, name=f"{codec}-{topology}", topology={"name": topology}))
            runs.write_curve(folders[-1], [final])
    only_ring = [folder for folder in folders if folder.name != "bf16-butterfly"]
    comparison = compare(folders, tmp_path / "out", axes=["codec", "topology"])
    assert row_of(comparison, "dynamiq, butterfly").targets[0].target == pytest.approx(10.5)
    assert row_of(comparison, "dynamiq, ring").targets[0].target == pytest.approx(21.0)

    row = row_of(compare(only_ring, tmp_path / "out", axes=["codec", "topology"]), "dynamiq, butterfly")
    assert (row.baseline, row.targets[0].target) == ("bf16, ring", pytest.approx(21.0))
    assert row.bytes_ratio is None, "bytes are compared on one topology only"


def test_labels_distinguish_cells(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write()]
    for bits in (3, 5):
        folders.append(runs.write("dynamiq", name=f"dynamiq-{bits}", codec={"name": "dynamiq", "bits": bits}))
    folders.append(runs.write("mxfp8", codec={"name": "mxfp8", "group": 32}))
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    assert [row.label for row in comparison.rows] == ["bf16", "dynamiq bits=3", "dynamiq bits=5", "mxfp8"]


@pytest.mark.parametrize(
    ("network", "slower", "told"), [("none", 3.0, True), ("none", 1.0, False), ("paced", 3.0, False)]
)
def test_compression_that_does_not_pay(
    runs: SyntheticRuns, tmp_path: Path, network: str, slower: float, told: bool
) -> None:
    folders = [
        runs.write(network={"name": network}),
        runs.write("dynamiq", slower=slower, network={"name": network}),
    ]
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    lines = [
        line for line in comparison.notes if line.startswith("On a raw loopback compression does not pay")
    ]
    assert bool(lines) == told
    assert all("dynamiq +" in line for line in lines)


def test_one_worker_sends_nothing(runs: SyntheticRuns, tmp_path: Path) -> None:
    folder = runs.write()
    runs.change_summary(
        folder, workers=1, wire_bits_per_coordinate=None, bytes_sent_per_rank=[0], vnmse_mean=None
    )
    row = compare([folder], tmp_path / "out").rows[0]
    assert (row.figures["wire_bits_per_coordinate"], row.bytes_ratio, row.figures["vnmse"]) == (
        None,
        None,
        None,
    )


def test_accuracies_are_better_when_higher(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(), runs.write("mxfp4")]
    runs.write_curve(folders[0], [0.5, 0.8], metric="accuracy")
    runs.write_curve(folders[1], [0.795, 0.7], metric="accuracy")
    row = row_of(compare(folders, tmp_path / "out", axes=["codec"]), "mxfp4")
    assert [target.target for target in row.targets] == pytest.approx([0.784, 0.792, 0.796, 0.7992])
    assert [target.reached for target in row.targets] == [1, 1, 0, 0]
    assert row.targets[0].stays is False


def test_unequal_seeds_are_noted_and_tests_pair_the_shared_ones(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write(seed=seed) for seed in (0, 1, 2)] + [runs.write("dynamiq", seed) for seed in (1, 2)]
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    assert any("seeds are not the same" in line and "dynamiq: 1, 2" in line for line in comparison.notes)
    assert row_of(comparison, "dynamiq").targets[0].p_faster == 1 / 4
