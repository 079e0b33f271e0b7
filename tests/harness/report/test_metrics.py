"""A metric is one entry of METRICS: rows, summaries, tables, plots, wandb and the results frame follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gradwire
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report import plots
from gradwire.harness.report.catalogue import metric_table
from gradwire.harness.report.compare import compare
from gradwire.harness.report.figures import render
from gradwire.harness.report.frame import load_results
from gradwire.harness.report.run_plots import training_plot
from gradwire.harness.report.style import PRINT
from gradwire.harness.timing.measure.metric import PERCENT, Kind, Metric
from gradwire.harness.timing.measure.metrics import METRICS, kind_of, of_ranks
from gradwire.harness.tracking.tables import tables
from gradwire.harness.trainer.steplog import _per_rank
from gradwire.harness.trainer.summarize import _figures

if TYPE_CHECKING:
    from conftest import SyntheticRuns

NEW = Metric(
    *("idle_share", "idle", "", "share of the step in which a rank does nothing"),
    places=("step", "summary"),
    ranks="max",
    better="lower",
    timed=True,
    mean=True,
    section="overlap",
    plot="training",
    shown=PERCENT,
)


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Metric:
    monkeypatch.setitem(METRICS, NEW.key, NEW)
    monkeypatch.setattr(plots, "plot_groups", lambda groups, folder: [])
    return NEW


def test_a_new_metric_is_shown_everywhere(new: Metric, runs: SyntheticRuns, tmp_path: Path) -> None:
    assert new.key in _per_rank(), "ranks send it to rank 0"
    ranks = [{"step_time_s": 1.0, "wait_s": 0.0, new.key: share} for share in (0.25, 0.5)]
    assert of_ranks(ranks)[new.key] == 0.5
    assert _figures([{new.key: 0.25}, {new.key: 0.5}], size=2)[new.key] == 0.375

    folder = runs.write()
    runs.change_summary(folder, **{new.key: 0.375}, overlap_s=0.1)
    runs.write_steps(folder, [{"measured": False, new.key: share} for share in (0.25, 0.5)])
    run = load_run(folder)
    assert json.loads(run.done.to_json())[new.key] == 0.375
    links = "emulated, 200 Mbit/s, shaped by the kernel"
    assert [new.key, 0.375, "wall", links] in tables(run)["overlap"]["rows"]
    plot = training_plot(run, "")
    assert plot is not None
    panel = render(plot, PRINT).axes[-1]
    assert panel.get_ylabel() == "idle [%]"
    assert list(panel.lines[0].get_ydata()) == [25.0, 50.0]
    (shown,) = [found for found in compare([folder], tmp_path / "out").tables if new.heading in found.header]
    assert shown.rows[0][shown.header.index("idle [%]")] == "37.5"
    assert f"| `{new.key}` | – | step, summary | max | as the run's times |" in metric_table()
    found = load_results(folder, steps=True)
    assert found[found.metric == new.key].value.tolist() == [0.375, 0.25, 0.5]


def test_of_slowest_ranks_the_one_that_waits_least_counts() -> None:
    ranks = [
        {"step_time_s": seconds, "compute_s": compute, "wait_s": wait, "osf": 0.5}
        for seconds, compute, wait in ((1.0, 0.1, 0.0), (2.0, 0.2, 0.75), (2.0, 0.3, 0.25))
    ]
    assert of_ranks(ranks) == {"step_time_s": 2.0, "compute_s": 0.3, "wait_s": 0.75, "osf": 0.5}


@pytest.mark.parametrize(
    ("cluster", "network", "kind"),
    [
        ("local", "none", "measured"),
        ("torchrun", None, "measured"),
        ("local", "paced", "emulated"),
        ("local", "shaped", "emulated"),
        ("virtual", "simulated", "modelled"),
        ("virtual", "none", "modelled"),
    ],
)
def test_what_times_are(cluster: str, network: str | None, kind: Kind) -> None:
    assert kind_of(cluster, network) == kind
    assert METRICS["step_time_s"].kind(kind) == kind
    assert METRICS["vnmse"].kind(kind) == "measured", "errors do not depend on the clock"


def test_the_frame_has_finished_runs_by_metric_case_and_step(runs: SyntheticRuns) -> None:
    done, failed = runs.write("dynamiq", 3), runs.fail(runs.write("thc"), "killed")
    missed = {"20": {"train_time_s": "inf", "step": None, "stays": None}}
    runs.change_summary(done, tta=missed)
    found = gradwire.load_results(runs.root)
    assert set(found.run) == {str(done)}
    assert list(found.columns) == [
        *("run", "task", "metric", "value", "unit", "case", "kind", "seed", "step")
    ]
    (step,) = found[found.metric == "step_time_s"].itertuples()
    assert (step.task, step.unit, step.kind, step.seed) == ("train", "s", "emulated", 3)
    (target,) = found[found.metric == "time_to_accuracy_s"].itertuples()
    assert (target.case, target.value) == ("20", float("inf"))
    curve = found[(found.metric == "perplexity")]
    assert curve.step.tolist() == [row["step"] for row in load_run(done).evals]
    assert set(curve.kind) == {"measured"}
    assert set(found[found.metric == "bytes_sent"].case) == {"reduce_scatter", "all_gather"}
    asked = gradwire.load_settings(runs.root)
    assert asked.loc[str(failed), "codec.name"] == "thc"
    assert load_results(failed).empty


SPREAD = {"median": 2.0, "low": 1.0, "high": 3.0}
REPLAY = {
    "seed": 5,
    "vnmse": [0.25, 0.5],
    "wire_bits_by_phase": {"metadata": 0.5},
    "bytes_sent_per_rank": [7],
}
REPLAY |= {"wire_bits_per_coordinate": 4.5, "bound_vnmse": None, "db_above_bound": 9.0}
REPLAY |= {"codec_s": 0.5, "codec_ns_per_coordinate": 2.0}
ALLREDUCE = {"network_settings": {"name": "paced"}, "rounds_s": [1.0, 3.0], "wire_bits_per_coordinate": 16.0}
ALLREDUCE |= {"measured": SPREAD, "measured_codec_s": None, "modelled": SPREAD, "modelled_codec_s": SPREAD}
BENCH = {"operation": "bitpack.pack", "dtype": "float32", "numel": 64, "implementation": "cpu", "threads": 1}
BENCH |= {"ns_per_coordinate": 2.0, "values_gb_per_s": 2.0, "bytes_per_coordinate": 5.0, "share_of_copy": 0.5}
SCORED = {"metrics": {"acc": {"value": 0.5, "stderr": 0.25}}, "documents": 4, "available": 9}
SCORED |= {"left_out": 0, "requests": 16, "cut": 0.0, "version": "1.0"}
NORMS = {"size": 16, "shuffled": False, "below_10th": 0.5, "below_100th": 0.25}

STUDIES: list[tuple[str, str, dict[str, Any], set[tuple[Any, ...]]]] = [
    (
        *("replay", "summary.json", REPLAY),
        {("vnmse", "", 0.25, 5), ("vnmse", "", 0.5, 6), ("wire_bits_per_coordinate", "metadata", 0.5, 5)},
    ),
    (
        *("allreduce", "allreduce.json", ALLREDUCE),
        {("allreduce_s", "", 3.0, None), ("allreduce_s", "high", 3.0, None), ("codec_s", "low", 1.0, None)},
    ),
    (
        *("bench", "bench.json", {"seed": 1, "rows": [BENCH | {"speedup": None}]}),
        {("ns_per_coordinate", "bitpack.pack float32 64 cpu 1", 2.0, 1)},
    ),
    (
        *("overhead", "overhead.json", {"blocks": {"bare": [[0.5, 0.25]]}}),
        {("cpu_step_s", "bare", 0.5, None), ("step_time_s", "bare", 0.25, None)},
    ),
    (
        *("statistics", "statistics.json", {"seed": 0, "workers": {"kurtosis": 3.5}, "norms": [NORMS]}),
        {
            ("workers.kurtosis", "", 3.5, 0),
            ("norms.below_10th", "16 as they are", 0.5, 0),
            ("norms.below_100th", "16 as they are", 0.25, 0),
        },
    ),
    (
        *("score", "scores.json", {"seed": 2, "tasks": {"piqa": SCORED}}),
        {("acc", "piqa", 0.5, 2), ("acc_stderr", "piqa", 0.25, 2), ("documents", "piqa", 4.0, 2)},
    ),
]


@pytest.mark.parametrize(("task", "file", "content", "lines"), STUDIES, ids=[study[0] for study in STUDIES])
def test_the_frame_has_what_studies_left(
    task: str, file: str, content: dict[str, Any], lines: set[tuple[Any, ...]], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(f"task: {{name: {task}}}\n")
    assert load_results(tmp_path).empty, "not finished"
    (tmp_path / file).write_text(json.dumps(content))
    mark_done(tmp_path)
    found = load_results(tmp_path)
    assert set(found.task) == {task}
    shown = found[["metric", "case", "value", "seed"]].astype(object)
    assert lines <= set(shown.where(shown.notna(), None).itertuples(index=False, name=None))
    if task == "allreduce":
        assert set(found[found.metric == "allreduce_s"].kind) == {"emulated", "modelled"}
    if task not in ("overhead", "statistics"):
        (tmp_path / file).write_text("{}")
        mark_done(tmp_path)
        with pytest.raises(ValueError, match=f"is not a record of task={task}"):
            load_results(tmp_path)
