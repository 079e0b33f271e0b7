"""Tables of several replays: their subjects, names of files, seeds that are pooled, plots."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from warm import run_command

from gradwire.codecs.interface import Layout
from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.report.figures import Plot
from gradwire.harness.studies.distribution import GroupErrors, exact_mean, vnmse
from gradwire.harness.studies.replay.compare import file_names, gradient_names
from gradwire.harness.studies.replay.study import STUDY as REPLAY
from gradwire.harness.studies.replay.study import ReplaySummary, pooled

NUMEL = 5000

Run = Callable[..., dict[str, Any]]


def values_of(file: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(file)["gradients"])


def test_a_sweep_makes_the_comparison_table(file: Path, tmp_path: Path) -> None:
    """One command, as a user gives it, makes a table of codecs by subject, plots, and one CSV line per
    replay."""
    command = [
        *("--multirun", "task=replay", f"gradients={file}", "codec=bf16,dynamiq", "topology=ring,broadcast"),
        *("replay.repeats=2", "hydra.sweep.dir=sweep"),
    ]
    done = run_command(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "sweep" / "table.md").read_text()
    for text in ("own, ring of 6", "own, broadcast of 6", "| bf16 |", "| dynamiq |", "dB above bound"):
        assert text in table
    with (tmp_path / "sweep" / "table.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["codec"], row["subject"]) for row in rows] == [
        ("bf16", "own, ring of 6"),
        ("bf16", "own, broadcast of 6"),
        ("dynamiq", "own, ring of 6"),
        ("dynamiq", "own, broadcast of 6"),
    ]
    assert float(rows[0]["wire_bits_per_coordinate"]) == 16
    assert {path.name for path in (tmp_path / "sweep").glob("frontier-*-print.png")} == {
        "frontier-own-ring-of-6-print.png",
        "frontier-own-broadcast-of-6-print.png",
    }


def test_the_error_is_drawn_over_the_workers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three numbers of workers make a line for each codec; two make none."""
    drawn: list[Plot] = []
    monkeypatch.setattr(
        "gradwire.harness.report.figures._write", lambda plot, *_: iter(drawn.append(plot) or ())
    )
    folders = []
    for codec in ("bf16", "uniform"):
        for workers in (2, 3, 6):
            name = f"{codec}-{workers}"
            choice = (
                f"codec={codec}",
                f"cluster.workers={workers}",
                "replay.repeats=1",
                "plots=false",
            )
            run(*choice, folder=name)
            folders.append(tmp_path / name)
    REPLAY.compare(folders[:2], tmp_path / "two", ["codec", "cluster.workers"])
    assert drawn and not any(plot.name.startswith("over-workers") for plot in drawn)
    REPLAY.compare(folders, tmp_path / "table", ["codec", "cluster.workers"])
    assert "over-workers" in {plot.name for plot in drawn}
    rows = json.loads((tmp_path / "table" / "table.json").read_text())["rows"]
    assert {row["series"] for row in rows} == {"own, ring"}


def test_large_files_of_one_name_and_size_are_not_one(tmp_path: Path) -> None:
    """Files of two runs of one model, whose only difference is in the middle of 80 MB."""
    values = np.zeros((2, 10_000_000), dtype=np.float32)
    names = []
    for run, middle in (("one", 1.0), ("two", 2.0)):
        values[1, 5_000_000] = middle
        (tmp_path / run).mkdir()
        np.savez(tmp_path / run / "step10.npz", gradients=values)
        place = f"gradients={tmp_path / run / 'step10.npz'}"
        names.append(run_name(validate_any(compose(["task=replay", place, "codec=bf16"]))))
    assert len(set(names)) == 2


def test_files_are_named_by_their_differences() -> None:
    assert list(file_names(["a/b/x.npz", "a/c/y.npz"]).values()) == ["x", "y"]
    assert list(file_names(["a/b/x.npz", "a/c/x.npz", "a/b/y.npz"]).values()) == ["b/x", "c/x", "b/y"]
    assert list(file_names(["x.npz", "x.npz"]).values()) == ["x"]
    assert list(file_names(["a/x.npz", "a/x.safetensors"]).values()) == ["a/x.npz", "a/x.safetensors"]


def test_files_that_say_what_they_are_are_named_after_it() -> None:
    """Seeds of one run share a name, and are one subject; files of one seed that say the same are not."""

    def said(seed: int, **about: Any) -> dict[str, Any]:
        return {"model": "gpt2", "size": "tiny", "codec": "bf16", "step": 20, "seed": seed, **about}

    both = gradient_names({"a/x": said(0), "b/x": said(1), "c/x": said(0, model="llama1b", step=5)})
    assert list(both.values()) == ["gpt2 step 20", "gpt2 step 20", "llama1b step 5"]
    told = gradient_names({"a/x": said(0), "b/x": said(0, codec="thc")})
    assert list(told.values()) == ["gpt2 bf16 step 20", "gpt2 thc step 20"]
    cut = gradient_names({"a/x": said(0, bucket_cap_mb=25.0), "b/x": said(0, bucket_cap_mb=0.25)})
    assert list(cut.values()) == [f"gpt2 buckets of {cap} MiB step 20" for cap in ("25", "0.25")]
    assert list(gradient_names({"a/x": said(0), "b/x": said(0)}).values()) == ["a/x", "b/x"]
    assert list(gradient_names({"a/x": said(0), "b/y": {}}).values()) == ["x", "y"]


def test_replays_of_several_seeds_are_one_line(file: Path, tmp_path: Path) -> None:
    """Errors of all repeats together; the seed of the replay is paired with that of the run."""
    folders = []
    for seed in (0, 1):
        own = tmp_path / f"run{seed}" / "step7.safetensors"
        own.parent.mkdir()
        values, about = values_of(file).float().roll(seed, dims=0), {"model": "gpt2", "step": 7, "seed": seed}
        write_gradients(own, values, [Layout.flat(NUMEL, "w")], about)
        asked = ["task=replay", f"gradients={own}", "codec=dynamiq", f"seed={seed}", "replay.repeats=2"]
        folders.append(tmp_path / f"out{seed}")
        assert REPLAY.run(validate_any(compose([*asked, "plots=false"])), folders[-1]) == 0
    REPLAY.compare(folders, tmp_path / "table", ["codec"])
    (row,) = json.loads((tmp_path / "table" / "table.json").read_text())["rows"]
    errors = [json.loads((each / "summary.json").read_text())["vnmse"] for each in folders]
    assert row["summary"]["vnmse"] == [*errors[0], *errors[1]]
    assert row["summary"]["vnmse_mean"] == pytest.approx(np.mean(errors))
    assert row["subject"] == "gpt2 step 7, ring of 6"


def test_errors_super_group_by_super_group() -> None:
    mean = torch.cat((torch.full((256,), 2.0), torch.zeros(256), torch.full((100,), 1.0))).double()
    estimate = mean.float() + torch.cat((torch.full((256,), 1.0), torch.ones(256), torch.zeros(100)))
    errors = GroupErrors.of(mean, [mean.numel()])
    for each in (estimate, mean.float()):
        errors.add(each.double() - mean)
    assert errors.relative().tolist() == [0.125, 0.0]
    assert vnmse(estimate, mean) == pytest.approx(512 / (4 * 256 + 100))
    assert vnmse(torch.zeros(4), torch.zeros(4).double()) is None
    assert vnmse(torch.full((4,), float("nan")), torch.ones(4).double()) is None
    assert exact_mean(torch.tensor([[1.0, 2.0], [3.0, 5.0]])).tolist() == [2.0, 3.5]


def test_replays_of_runs_that_differ_in_the_seed_are_pooled() -> None:
    """Errors are those of all repeats, other figures means of those that are known."""
    recorded = Path(__file__).parents[1] / "recorded" / "replay" / "thc"
    one = ReplaySummary.read(recorded / SUMMARY)
    assert pooled([one]) is one
    several = [
        replace(
            one,
            vnmse=errors,
            wire_bits_per_coordinate=bits,
            bound_vnmse=None,
            db_above_bound=decibels,
            codec_s=seconds,
            codec_ns_per_coordinate=10 * seconds,
        )
        for errors, bits, decibels, seconds in (
            ([0.5, 0.25], 4.0, None, 1.0),
            ([0.75], 8.0, 3.0, 2.0),
            ([1.0], 6.0, 5.0, 6.0),
        )
    ]
    found = pooled(several)
    assert (found.vnmse, found.repeats) == ([0.5, 0.25, 0.75, 1.0], 4)
    assert (found.vnmse_mean, found.vnmse_min, found.vnmse_max) == (0.625, 0.25, 1.0)
    assert found.vnmse_std == pytest.approx(np.std([0.5, 0.25, 0.75, 1.0], ddof=1))
    assert (found.wire_bits_per_coordinate, found.bound_vnmse, found.db_above_bound) == (6.0, None, 4.0)
    assert (found.codec_s, found.codec_ns_per_coordinate) == (3.0, 30.0)
    assert found.super_group_errors == one.super_group_errors
    unknown = pooled([one, replace(one, vnmse=[None])])
    assert (unknown.vnmse_mean, unknown.vnmse_std, unknown.vnmse_max) == (None, None, None)
