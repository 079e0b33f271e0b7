"""`task=replay` from the command line: its summary's figures, wrong input, sweeps, repeated calls."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clock_codec import ClockDriven
from warm import run_command

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate_any
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.record.identity import run_id
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.frame import load_results
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.distribution import GroupErrors, exact_mean, vnmse
from gradwire.harness.studies.message_bounds import MessageBound
from gradwire.harness.studies.replay import tally
from gradwire.harness.studies.replay.compare import file_names, gradient_names
from gradwire.harness.studies.replay.study import STUDY as REPLAY
from gradwire.harness.studies.replay.study import ReplaySummary, pooled

NUMEL = 5000

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Gradients of six workers, coordinates of different magnitude."""
    generator = torch.Generator().manual_seed(0)
    magnitude = torch.exp(2 * torch.randn(NUMEL, generator=generator))
    values = magnitude * (1 + torch.randn(6, NUMEL, generator=generator))
    np.savez(tmp_path / "own.npz", gradients=values.numpy())
    return tmp_path / "own.npz"


@pytest.fixture
def run(file: Path, tmp_path: Path) -> Run:
    """Runs a replay in a folder of its own and returns its summary."""

    def start(*overrides: str, folder: str = "out") -> dict[str, Any]:
        config = validate_any(compose(["task=replay", f"gradients={file}", *overrides]))
        assert REPLAY.run(config, tmp_path / folder) == 0
        found: dict[str, Any] = json.loads((tmp_path / folder / "summary.json").read_text())
        return found

    return start


def values_of(file: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(file)["gradients"])


def test_wire_bits_by_level_are_those_of_the_formula(run: Run, tmp_path: Path) -> None:
    """On a ring every other rank of two nodes of two sends to the other node."""
    summary = run("codec=bf16", "cluster.workers=4", "cluster.ranks_per_node=2", "replay.repeats=2")
    assert summary["wire_bits_per_coordinate"] == 16
    assert re.fullmatch("[0-9a-f]{12}", summary["gradients"]["hash"])
    assert summary["wire_bits_by_level"] == {"local": 8.0, "node": 8.0}
    lines = load_results(tmp_path / "out").set_index("metric").value
    assert lines["wire_bits_by_level.local"] == lines["wire_bits_by_level.node"] == 8
    whole = run("codec=bf16", "cluster.workers=4", "replay.repeats=1", folder="whole")
    assert whole["wire_bits_by_level"] is None


def test_the_summary_says_what_a_synchronization_gives(run: Run, file: Path, tmp_path: Path) -> None:
    """Error and bytes against the codec run by hand in a world of its own."""
    summary = run("codec=dynamiq", "topology=butterfly", "cluster.workers=4", "replay.repeats=3", "seed=7")
    values, errors = values_of(file)[:4], []
    world = VirtualWorld(4, Fabric(lambda n: make_schedule("butterfly", n)), torch.device("cpu"))
    for seed in (7, 8, 9):
        layout = Layout.flat(NUMEL, "bucket0")
        collectives = {
            rank: synchronization(
                make_codec("dynamiq"), values[rank], Round(0, layout, rank, 4, seed), check_hashes=False
            )
            for rank in range(4)
        }
        mean = values.double().mean(dim=0)
        estimate = world.run(collectives)[0].double()
        errors.append(float((estimate - mean).square().sum() / mean.square().sum()))
    assert summary["vnmse"] == pytest.approx(errors, rel=1e-9)
    assert summary["vnmse_mean"] == pytest.approx(np.mean(errors))
    assert summary["vnmse_std"] == pytest.approx(np.std(errors, ddof=1))
    sent = [traffic.total // 3 for traffic in world.traffic.values()]
    assert summary["bytes_sent_per_rank"] == sent
    assert summary["wire_bits_per_coordinate"] == pytest.approx(8 * sum(sent) / (6 * NUMEL))
    assert sum(summary["wire_bits_by_phase"].values()) == pytest.approx(summary["wire_bits_per_coordinate"])
    assert set(summary["wire_bits_by_phase"]) == {"metadata", "reduce_scatter", "all_gather"}
    assert len(summary["super_group_errors"]) == 101
    apart = summary["errors_by_width"].values()
    assert set(summary["errors_by_width"]) <= {"2", "4", "8"} and len(apart) > 1
    ends = min(own[0] for own in apart), max(own[-1] for own in apart)
    assert ends == (summary["super_group_errors"][0], summary["super_group_errors"][-1])
    assert summary["codec_s"] > 0
    assert summary["db_above_bound"] > 0
    assert (tmp_path / "out" / "DONE").exists()
    assert (tmp_path / "out" / "plots" / "super-groups-print.png").exists()


def test_errors_by_width_are_the_errors_of_all_if_there_is_one_width(run: Run) -> None:
    summary = run("codec=uniform", "codec.widths=[4]", "replay.repeats=2")
    assert summary["errors_by_width"] == {"4": summary["super_group_errors"]}
    assert run("codec=mxfp8", "replay.repeats=1", folder="other")["errors_by_width"] == {}


def test_all_workers_of_the_file_take_part_by_default(run: Run) -> None:
    assert run("codec=bf16", "replay.repeats=1")["workers"] == 6
    assert run("codec=bf16", "cluster.workers=2", folder="two")["workers"] == 2


def test_a_bound_of_messages_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary and the printed line say which bound it is; errors and bits are those of any."""
    found = {
        bound: run("codec=mxfp8", "replay.repeats=1", f"replay.bound={bound}", folder=bound)
        for bound in ("mean", "ring", "butterfly")
    }
    assert [one["bound"] for one in found.values()] == ["mean", "ring", "butterfly"]
    above = {bound: one["db_above_bound"] for bound, one in found.items()}
    assert len(set(above.values())) == 3 and min(above.values()) > 0
    assert len({one["vnmse_mean"] for one in found.values()}) == 1
    for one in found.values():
        assert one["bound_curve"][0] == 1 and one["bound_curve"] == sorted(one["bound_curve"], reverse=True)
    printed = capsys.readouterr().out
    assert f"{above['ring']:.1f} dB above the rate–distortion bound of a ring's messages\n" in printed
    assert f"{above['mean']:.1f} dB above the rate–distortion bound\n" in printed


def test_figures_of_different_bounds_are_kept_apart(run: Run, tmp_path: Path) -> None:
    """Each has a table of its own, and records from before there was a choice are those of the mean."""
    for codec in ("bf16", "mxfp8"):
        for bound in ("mean", "ring"):
            chosen = (f"codec={codec}", f"replay.bound={bound}", "replay.repeats=1", "plots=false")
            run(*chosen, folder=f"{codec}-{bound}")
    folders = [tmp_path / f"{codec}-{bound}" for codec in ("bf16", "mxfp8") for bound in ("mean", "ring")]
    page = REPLAY.compare(folders, tmp_path / "table", ["codec", "replay.bound"])
    titles = [table.title for table in page.tables]
    assert titles == ["vNMSE", "own, ring of 6", "own, ring of 6, bound of a ring's messages"]
    assert [row[0] for row in page.tables[2].rows] == ["bf16", "mxfp8"]
    assert sum("ideal codes for every message" in remark for remark in page.remarks) == 1


def test_a_bound_is_computed_once_for_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[str]()

    def once(values: Any, mean: Any, buckets: Any, schedule: Any) -> MessageBound:
        made.append(schedule.name)
        return MessageBound(torch.tensor([0.0, 64.0]), torch.tensor([1.0, 0.5]))

    monkeypatch.setattr(MessageBound, "of", once)
    monkeypatch.setattr(tally, "_message_bounds", {})
    for codec in ("bf16", "mxfp8"):
        found = run(f"codec={codec}", "replay.bound=ring", "replay.repeats=2", folder=codec)
    assert made == ["ring"] and found["bound_curve"][16] == 0.875


def test_codecs_that_adapt_get_rounds_to_settle(run: Run) -> None:
    """MXFP's μ begins at the number of workers and moves; the bytes are those of one synchronization."""
    first = run("codec=mxfp8", "replay.repeats=1")
    settled = run("codec=mxfp8", "replay.repeats=1", "replay.rounds=30", folder="settled")
    assert first["logged"]["mu"] == 6
    assert settled["logged"]["mu"] != 6
    assert settled["bytes_sent_per_rank"][1] == first["bytes_sent_per_rank"][1]


def test_buckets_of_the_size_asked_for(run: Run) -> None:
    whole = run("codec=dynamiq", "replay.repeats=1")
    small = run("codec=dynamiq", "replay.repeats=1", "replay.bucket_mb=0.004", folder="small")
    assert (whole["num_buckets"], small["num_buckets"]) == (1, 5)
    assert small["vnmse_mean"] != whole["vnmse_mean"]


def test_what_gradients_that_are_not_finite_or_all_zero_give(
    run: Run, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the workers that take part count."""
    values = np.load(file)["gradients"]
    values[1, 37] = np.nan
    values[0] = 0
    np.savez(file, gradients=values)
    with pytest.raises(ValueError, match="coordinate 37 of worker 1 is nan; give gradients that are finite"):
        run("codec=bf16", "cluster.workers=2", "replay.repeats=1")
    run("codec=bf16", "cluster.workers=1", "replay.repeats=1", folder="alone")
    printed = capsys.readouterr().out
    assert "no vNMSE over replay.repeats=1: the gradients' mean is zero" in printed
    assert "coordinates in 1 bucket)" in printed


def test_a_finished_replay_is_not_repeated(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = run("codec=bf16", "replay.repeats=1")
    capsys.readouterr()
    assert run("codec=bf16", "replay.repeats=1") == before
    printed = capsys.readouterr().out
    assert printed.startswith("already finished: ")
    assert printed.splitlines()[-1].startswith("run: ")


def test_what_changes_the_result_changes_the_name(file: Path, tmp_path: Path) -> None:
    def config(*overrides: str, where: Path = file) -> Any:
        return validate_any(compose(["task=replay", f"gradients={where}", *overrides]))

    other = tmp_path / "elsewhere" / "own.npz"
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    first = config()
    assert run_name(first).startswith("replay-own-dynamiq-5-ring-n6-s0-")
    assert run_id(config(where=other)) == run_id(first)
    changed = [
        config("seed=1"),
        config("replay.rounds=2"),
        config("codec.bits=4"),
        config("topology=butterfly"),
    ]
    np.savez(other, gradients=2 * values_of(file).numpy())
    changed.append(config(where=other))
    assert len({run_id(each) for each in [first, *changed]}) == 6


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("cluster.workers=7",), ["cluster.workers=7", "gradients of 6 workers"]),
        (("codec=backend",), ["codec=backend", "real processes", "fp32"]),
        (("cluster=local",), ["cluster=virtual"]),
        (("replay.repeats=0",), ["replay.repeats=0", "from 1 to"]),
        (("replay.repeats=1.5",), ["replay.repeats=1.5", "whole number"]),
        (("replay.rounds=null",), ["replay.rounds=null", "whole number"]),
        (("replay.bucket_mb=many",), ["replay.bucket_mb=many", "a number"]),
        (("codec=powersgd",), ["codec=powersgd", "array `layout`"]),
        (("replay.bucket_mb=-1",), ["replay.bucket_mb=-1"]),
        (("codec.bits=1",), ["codec.bits=1"]),
        (("replay.bound=star",), ["replay.bound=star", "one of mean, ring, butterfly"]),
        (
            ("replay.bound=ring", "topology=broadcast"),
            ["replay.bound=ring", "topology=broadcast sends others; leave it out"],
        ),
        (("topology.name=star",), ["topology.name=star", "choose it by topology=star"]),
        (("codec=randomk", "codec.unbiased_scaling=true", "codec.ef=true"), ["codec.ef=true diverges"]),
    ],
)
def test_wrong_input_is_refused_in_one_line(overrides: tuple[str, ...], parts: list[str], file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_any(compose(["task=replay", f"gradients={file}", *overrides]))
    assert all(part in str(refused.value) for part in parts), refused.value
    assert "\n" not in str(refused.value)


def test_decisions_by_a_clock_are_refused(file: Path) -> None:
    config = validate_any(compose(["task=replay", f"gradients={file}"]))
    with pytest.raises(ValueError, match="codec=clock_driven decides by the times of messages, which task="):
        REPLAY.resolve(replace(config, codec={"name": ClockDriven.name}))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="gradients has no value"):
        validate_any(compose(["task=replay"]))
    with pytest.raises(ConfigError, match=r"gradients=no\.npz: not found; give a .safetensors or .npz file"):
        validate_any(compose(["task=replay", "gradients=no.npz"]))


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
