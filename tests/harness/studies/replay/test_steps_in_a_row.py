"""`task=replay` of several files: codecs keep their state from step to step, as they do in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_jobs import tiny_run, train_all_virtually

from gradwire.codecs.interface import Layout
from gradwire.harness.config.compose import compose
from gradwire.harness.config.run_name import run_name
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.gradients import write_gradients
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.runs import load_run
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.tables import figure
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.replay.study import STUDY as REPLAY
from gradwire.harness.studies.replay.study import ReplaySummary, pooled
from gradwire.harness.timing.measure.metric import SHORT

NUMEL = 3000
LAYOUTS = (Layout(("a", "b"), ((40, 50), (100,)), (0, 2000), 2100), Layout(("c",), ((900,),), (0,), 900))
ABOUT = {"run": "0123456789ab", "model": "gpt2", "size": "tiny", "codec": "bf16", "seed": 0}
ADAPTIVE = (
    ("codec=mxfp8", "codec.gamma=0.5"),
    ("codec=omnireduce",),
    ("codec=powersgd", "codec.rank=2"),
    ("codec=topk", "codec.fraction=0.05", "codec.ef=true"),
    (
        *("codec=edgc", "codec.window=3", "codec.alpha=1", "codec.step_limit=1", "codec.max_rank=6"),
        *("codec.warm_up_share=0", "codec.steps=14"),
    ),
)

ADAPTS_BITS = ("codec=omnireduce", "codec=edgc")

Summary = dict[str, Any]
Start = Callable[..., Summary]


def values_of(step: int, workers: int = 4) -> Tensor:
    """Gradients that drift from step to step, coordinates of different magnitude."""
    generator = torch.Generator().manual_seed(0)
    magnitude = torch.exp(2 * torch.randn(NUMEL, generator=generator))
    common = torch.randn(workers, NUMEL, generator=generator)
    own = torch.randn(workers, NUMEL, generator=torch.Generator().manual_seed(step))
    return magnitude * (1 + common + own)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Steps 7, 8 and 9 of a run of four workers."""
    paths = [tmp_path / f"step{step}.safetensors" for step in (7, 8, 9)]
    for step, path in zip((7, 8, 9), paths, strict=True):
        write_gradients(path, values_of(step), LAYOUTS, {"step": step, **ABOUT})
    return list(map(str, paths))


def config_of(files: list[str], *overrides: str) -> Any:
    given = f"gradients=[{','.join(files)}]"
    return validate_any(compose(["task=replay", given, "kernels=default", *overrides]))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs a replay in a folder of its own and returns its summary."""

    def run(files: list[str], *overrides: str, folder: str = "out") -> Summary:
        assert REPLAY.run(config_of(files, "plots=false", *overrides), tmp_path / folder) == 0
        found: Summary = json.loads((tmp_path / folder / "summary.json").read_text())
        return found

    return run


@pytest.mark.parametrize("codec", ADAPTIVE, ids=lambda codec: codec[0].removeprefix("codec="))
def test_a_row_from_the_first_step_repeats_what_training_did(codec: tuple[str, ...], tmp_path: Path) -> None:
    """Errors depend on all decisions and residuals before: equal ones mean that those were equal, too."""
    count = 14 if codec[0] == "codec=edgc" else 6
    kept = (f"measure.save_gradients_at=[0-{count - 1}]", f"train.steps={count}", "train.log_every=1")
    run = tmp_path / "run"
    training = tiny_run("cluster=virtual", "cluster.workers=3", "measure.vnmse_every=1", *kept, *codec)
    train_all_virtually(training, str(run))
    files = [str(run / "gradients" / f"step{step}.safetensors") for step in range(count)]
    assert REPLAY.run(config_of(files, *codec, "replay.repeats=1", "plots=false"), tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    steps = load_run(run).steps
    trained = [step["vnmse"] for step in steps]
    assert [own for (own,) in found["vnmse_by_step"].values()] == pytest.approx(trained, rel=1e-9)
    assert found["vnmse"] == pytest.approx([np.mean(trained)])
    bits = [step["wire_bits_per_coordinate"] for step in steps]
    assert list(found["wire_bits_by_step"].values()) == pytest.approx(bits)
    assert (len(set(bits)) > 2) == (codec[0] in ADAPTS_BITS)


def test_state_is_kept_from_step_to_step_and_not_over_repeats(files: list[str], start: Start) -> None:
    """Error feedback adds what earlier steps have lost; the next repeat knows nothing of it."""
    codec = ("codec=topk", "codec.fraction=0.05", "codec.ef=true")
    row = start(files, *codec, "replay.repeats=2")
    errors = row["vnmse_by_step"]
    assert list(errors) == ["7", "8", "9"] and all(first == second for first, second in errors.values())
    alone = [
        start([file], *codec, "replay.repeats=1", folder=Path(file).stem)["vnmse_mean"] for file in files
    ]
    assert errors["7"][0] == alone[0] == row["vnmse_first_step"]
    assert errors["8"][0] > 1.01 * alone[1] and errors["9"][0] > 1.01 * alone[2], "residuals are added"
    assert row["vnmse"] == pytest.approx([np.mean([own[0] for own in errors.values()])] * 2)
    without = start(files, *codec[:2], "replay.repeats=1", folder="without")
    assert [own[0] for own in without["vnmse_by_step"].values()] == alone


def test_figures_of_a_row_are_means_over_its_steps(
    files: list[str], start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a codec without state they are those of the files; its random numbers depend on the round."""
    row = start(files, "codec=uniform", "codec.widths=[4]", "replay.repeats=2", "seed=3", "cluster.workers=3")
    printed = capsys.readouterr().out
    assert "step7.safetensors to step9.safetensors (3000 coordinates in 2 buckets), ring of 3" in printed
    assert "over replay.repeats=2, mean of 3 steps in a row" in printed
    errors = list(row["vnmse_by_step"].values())
    assert row["vnmse"] == pytest.approx(np.mean(errors, axis=0)) and row["repeats"] == 2
    assert row["vnmse_first_step"] == pytest.approx(np.mean(errors[0]))
    assert row["wire_bits_per_coordinate"] == pytest.approx(np.mean(list(row["wire_bits_by_step"].values())))
    assert row["gradients"]["files"] == ["step7.safetensors", "step8.safetensors", "step9.safetensors"]
    assert (row["gradients"]["step"], row["gradients"]["last_step"]) == (7, 9)
    assert len(row["super_group_errors"]) == 101 and row["errors_by_width"].keys() == {"4"}


def test_the_bound_of_a_row_is_the_mean_of_those_of_its_steps(files: list[str], start: Start) -> None:
    row = start(files, "codec=bf16", "replay.repeats=1")
    alone = [start([file], "codec=bf16", "replay.repeats=1", folder=Path(file).stem) for file in files]
    assert row["bound_curve"] == pytest.approx(np.mean([one["bound_curve"] for one in alone], axis=0))
    assert row["vnmse"] == [pytest.approx(np.mean([one["vnmse_mean"] for one in alone]))]
    above = 10 * np.log10(row["vnmse_mean"] / row["bound_vnmse"])
    assert row["db_above_bound"] == pytest.approx(above)
    assert all(one["vnmse_by_step"] == {} and one["vnmse_first_step"] is None for one in alone)


def test_a_list_of_one_file_is_that_file(files: list[str]) -> None:
    listed, plain = (
        config_of(files[:1]),
        validate_any(compose(["task=replay", f"gradients={files[0]}", "kernels=default"])),
    )
    assert listed == plain and listed.gradients == files[0]
    assert run_id(listed) == run_id(plain) and run_name(listed) == run_name(plain)


def test_a_single_file_keeps_its_id(tmp_path: Path) -> None:
    """That of the time when there was no row."""
    path = tmp_path / "step7.npz"
    np.savez(path, gradients=np.arange(12_000, dtype=np.float32).reshape(4, 3000))
    assert run_id(config_of([str(path)], "codec=bf16")) == "4625e36c683c"


def test_files_and_their_order_make_the_id(files: list[str]) -> None:
    row = config_of(files)
    assert run_name(row).startswith("replay-step7-step9-dynamiq-5-ring-n4-s0-")
    ids = {run_id(row), run_id(config_of(files[:2])), run_id(config_of(files[:1]))}
    write_gradients(Path(files[2]), 2 * values_of(9), LAYOUTS, {"step": 9, **ABOUT})
    assert len(ids | {run_id(config_of(files))}) == 4


OTHER_LAYOUTS = (LAYOUTS[1], LAYOUTS[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"step": 7},
            "step8.safetensors is of step 7, and the file before it of step 7; give every step",
        ),
        ({"step": 5}, "is of step 5, and the file before it of step 7; give every step once, in ascending"),
        ({"step": 9}, "a row has no gaps: add step 8, which measure.save_gradients_at=[7-9] keeps"),
        ({"step": 12}, "a row has no gaps: add steps 8 to 11, which measure.save_gradients_at=[7-12] keeps"),
        ({"step": None}, "step8.safetensors does not say its step, and a row is of consecutive steps; give"),
        ({"model": "bert_large"}, "has model bert_large, and "),
        ({"run": "ba9876543210"}, "has run ba9876543210, and "),
        ({"seed": 1}, "has seed 1, and "),
        ({"workers": 3}, "has workers 3, and "),
        ({"layouts": OTHER_LAYOUTS}, "has other parameters, or another order of them, than "),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_files_that_do_not_continue_a_row_are_refused(
    change: dict[str, Any], said: str, files: list[str]
) -> None:
    about = {"step": 8, **ABOUT, **change}
    layouts, workers = about.pop("layouts", LAYOUTS), about.pop("workers", 4)
    write_gradients(Path(files[1]), values_of(8, workers), layouts, about)
    with pytest.raises(ConfigError) as refused:
        config_of(files[:2])
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_rounds_of_a_row_and_files_that_cannot_be_read_are_refused(files: list[str], start: Start) -> None:
    with pytest.raises(ConfigError, match="replay.rounds=2 is for one file, and gradients has 3 steps"):
        config_of(files, "replay.rounds=2")
    with pytest.raises(ConfigError, match=r"gradients=no\.npz: not found"):
        config_of([files[0], "no.npz"])
    with pytest.raises(ConfigError, match="gradients=\\[\\]: choose a printable text, or a list of them"):
        config_of([])
    np.savez(files[0].replace("7.safetensors", ".npz"), gradients=values_of(8).numpy())
    with pytest.raises(ConfigError, match=r"step\.npz does not say its step"):
        config_of([files[0].replace("7.safetensors", ".npz"), files[1]])
    content = bytearray(Path(files[1]).read_bytes())
    content[-5] ^= 1
    Path(files[1]).write_bytes(content)
    with pytest.raises(ValueError, match=r"step8\.safetensors cannot be used: it is damaged"):
        start(files, "replay.repeats=1")


def test_files_of_ones_own_say_their_step(tmp_path: Path, start: Start) -> None:
    paths = []
    for step in (3, 4):
        layout = json.dumps({"step": step, "buckets": [{"names": ["w"], "shapes": [[30, 100]]}]})
        paths.append(str(tmp_path / f"own{step}.npz"))
        np.savez(paths[-1], gradients=values_of(step).numpy(), layout=layout)
    row = start(paths, "codec=powersgd", "replay.repeats=1")
    assert list(row["vnmse_by_step"]) == ["3", "4"] and row["gradients"]["files"] == ["own3.npz", "own4.npz"]


def test_a_comparison_shows_errors_by_step(
    files: list[str], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Plot] = []
    monkeypatch.setattr(
        "gradwire.harness.report.figures._write", lambda plot, *_: iter(drawn.append(plot) or ())
    )
    names = ("bf16", "mxfp8")
    rows = {name: start(files, f"codec={name}", "replay.repeats=2", folder=name) for name in names}
    page = REPLAY.compare([tmp_path / name for name in rows], tmp_path / "table", ["codec"])
    whole, by_step = page.tables
    assert whole.title == "gpt2 steps 7–9, ring of 4" and "first step" in whole.header
    assert by_step.title == f"vNMSE by step, {whole.title}"
    assert by_step.header == ["step", "bf16", "mxfp8"] and [row[0] for row in by_step.rows] == ["7", "8", "9"]
    assert by_step.rows[0][2] == figure(rows["mxfp8"]["vnmse_first_step"], SHORT)
    assert any("Steps in a row" in note for note in page.remarks)
    assert "steps" in {plot.name for plot in drawn}
    single = [tmp_path / "one"]
    start(files[:1], "codec=bf16", "replay.repeats=1", folder="one")
    assert len(REPLAY.compare(single, tmp_path / "without", []).tables) == 1


def test_rows_of_runs_that_differ_in_the_seed_are_pooled() -> None:
    recorded = Path(__file__).parents[1] / "recorded" / "replay" / "thc"
    one = ReplaySummary.read(recorded / SUMMARY)
    rows = [
        replace(one, vnmse=[0.5, first], vnmse_by_step={"7": [first, 1.0]}, vnmse_first_step=first)
        for first in (0.25, 0.75)
    ]
    found = pooled(rows)
    assert found.vnmse_by_step == {"7": [0.25, 1.0, 0.75, 1.0]} and found.vnmse_first_step == 0.5
