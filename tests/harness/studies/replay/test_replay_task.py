"""`task=replay` from the command line: its summary's figures, wrong input, repeated calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clock_codec import ClockDriven

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate_any
from gradwire.harness.parallel.synchronize import synchronization
from gradwire.harness.record.identity import run_id
from gradwire.harness.report.frame import load_results
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.message_bounds import MessageBound
from gradwire.harness.studies.replay import tally
from gradwire.harness.studies.replay.study import STUDY as REPLAY

NUMEL = 5000

Run = Callable[..., dict[str, Any]]


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
