"""Reading run directories, whole and broken."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradwire.harness.record.runs import find_runs, load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.groups import group_runs, shared

if TYPE_CHECKING:
    from conftest import SyntheticRuns


def test_a_finished_run(runs: SyntheticRuns) -> None:
    run = load_run(runs.write("dynamiq", seed=3))
    assert (run.status, run.codec, run.seed, run.choice("topology")) == ("done", "dynamiq", 3, "ring")
    assert run.done.steps == len(run.steps) == 200
    (curve,) = group_runs([run])[0].curves.by_seed.values()
    assert [point.step for point in curve] == list(range(0, 201, 10))
    assert curve[-1].metric == run.done.final_metric


def test_a_pipelines_count_says_that_it_has_the_tied_embedding_twice(runs: SyntheticRuns) -> None:
    """Its last stage has a copy, whose gradients are synchronized, too."""
    model = {"name": "gpt_2_5b", "tie_embeddings": True}
    for name, parallel in (("ddp", {}), ("pipeline", {"stages": 2})):
        folder = runs.write(name=name, model=model, parallel={"name": name, **parallel})
        runs.change_summary(folder, num_coordinates=173_824)
    plain, piped = (shared(group_runs([load_run(runs.root / name)]))[0] for name in ("ddp", "pipeline"))
    assert plain == "GPT-2.5B, 174k parameters"
    assert piped == "GPT-2.5B, 174k parameters, the tied embedding in two stages"


def test_an_unknown_metric_is_refused(runs: SyntheticRuns) -> None:
    run = load_run(runs.write())
    (group,) = group_runs([replace(run, summary=replace(run.done, metric="accuracy"))])
    with pytest.raises(ValueError, match=r"no metric 'accuracy' in evals\.jsonl, which has loss, perplexity"):
        _ = group.curves


def test_a_failed_run_keeps_its_reason(runs: SyntheticRuns) -> None:
    run = load_run(runs.fail(runs.write(), "loss is NaN at step 7"))
    assert (run.status, run.reason, run.summary) == ("failed", "loss is NaN at step 7", None)


def test_done_wins_over_an_earlier_failure(runs: SyntheticRuns) -> None:
    folder = runs.write()
    (folder / "FAILED").write_text("worker 1 died")
    assert load_run(folder).status == "done"


def test_a_run_cut_off_while_writing_a_row(runs: SyntheticRuns) -> None:
    folder = runs.write()
    (folder / "DONE").unlink()
    text = (folder / "steps.jsonl").read_text()
    (folder / "steps.jsonl").write_text(text[:-20])
    run = load_run(folder)
    assert (run.status, run.reason, len(run.steps)) == ("unfinished", "last recorded step: 198", 199)


def test_a_broken_row_in_the_middle_is_named(runs: SyntheticRuns) -> None:
    folder = runs.write()
    lines = (folder / "evals.jsonl").read_text().splitlines()
    (folder / "evals.jsonl").write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]))
    mark_done(folder)
    with pytest.raises(ValueError, match=r"evals\.jsonl: line 2 is not JSON"):
        load_run(folder)


def test_a_broken_summary_is_named(runs: SyntheticRuns) -> None:
    folder = runs.write()
    (folder / "summary.json").write_text("{}")
    mark_done(folder)
    with pytest.raises(ValueError, match=r"summary\.json: lacks metric, final_metric, tta and 16 more"):
        load_run(folder)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run directory"):
        load_run(tmp_path)


def test_non_finite_losses_are_numbers_again(runs: SyntheticRuns) -> None:
    folder = runs.write()
    runs.write_curve(folder, [20.0, math.inf, math.nan])
    (curve,) = group_runs([load_run(folder)])[0].curves.by_seed.values()
    metrics = [point.metric for point in curve]
    assert metrics[:2] == [20.0, math.inf]
    assert math.isnan(metrics[2])
    assert math.isnan(load_run(folder).done.final_metric)


def test_runs_are_found_below_a_sweep_but_not_in_hidden_folders(
    runs: SyntheticRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [runs.write(seed=seed) for seed in (0, 1)]
    hidden = folders[0] / ".hydra"
    hidden.mkdir()
    (hidden / "config.yaml").touch()
    empty = tmp_path / "empty"
    assert find_runs([runs.root, folders[0], empty]) == [*folders, empty]
    monkeypatch.setattr("gradwire.harness.record.runs.MOST_FOLDERS", 2)
    with pytest.raises(ValueError, match=r"has more than 2 folders; name the folder that runs are in$"):
        find_runs([runs.root])
