"""Sweeps through Hydra: everything is checked first, finished cells are skipped, failed ones listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradwire.harness.config.root_keys import SweepConfig
from gradwire.harness.record.profiles import (
    Computation,
    Origin,
    Profile,
    keep_profile,
    own_profile,
    read_profiles,
    sweep_folder,
)
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.plan import Plan
from gradwire.harness.sweeps.run import run_sweep
from gradwire.harness.timing.simulate.profile import LaneStretch, Quantiles

Finished = list[tuple[str, list[Path], list[str], Path]]


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Finished:
    """The calls of `finish_sweep`, which are noted instead of carried out."""
    calls: Finished = []

    def record(plan: Plan) -> None:
        calls.append((plan.name, [cell.directory for cell in plan.cells], plan.axes, plan.output))

    monkeypatch.setattr("gradwire.harness.sweeps.run.finish_sweep", record)
    return calls


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_demo_runs_its_cells_and_compares_them(
    run_py: Callable[..., int], task: Any, finished: Finished, tmp_path: Path
) -> None:
    assert run_py("sweeps=demo", "size=tiny") == 0
    assert [(config.codec["name"], config.network.name) for config, _ in task.ran] == [
        ("bf16", "paced"),
        ("dynamiq", "paced"),
    ]
    directories = [directory for _, directory in task.ran]
    ((name, compared, axes, output),) = finished
    assert (name, compared, output) == ("demo-tiny", directories, Path("outputs/sweeps/demo-tiny"))
    assert axes[:2] == ["codec", "codec.bits"]
    expected = {
        f"{directory}/{file}" for directory in directories for file in ("config.yaml", "run.json", "DONE")
    }
    assert files_below(tmp_path) == expected  # nothing is written elsewhere


def test_codecs_take_turns_seed_by_seed(
    run_py: Callable[..., int], task: Any, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells start seed by seed, codecs one after another; tables and `task=plan` have them all."""
    arguments = ("size=tiny", "codec=bf16,dynamiq", "topology=ring,butterfly", "seed=3,1")
    assert run_py("task=plan", "--multirun", *arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "codec=" in line]
    assert run_py("--multirun", *arguments) == 0
    ran = [
        f"codec={config.codec['name']} topology={config.topology.name} seed={config.seed}"
        for config, _ in task.ran
    ]
    assert ran == [
        f"codec={codec} topology={topology} seed={seed}"
        for seed in (3, 1)
        for topology in ("ring", "butterfly")
        for codec in ("bf16", "dynamiq")
    ]
    assert [line[line.index("codec=") :] for line in lines] == ran
    ((_, compared, _, _),) = finished
    assert compared != (directories := [directory for _, directory in task.ran])
    assert sorted(compared) == sorted(directories)
    names = [str(directory) for directory in compared]
    assert ["bf16" in name for name in names] == [True] * 4 + [False] * 4, "tables keep their order"


def test_failed_cells_are_listed_and_run_again(
    run_py: Callable[..., int], task: Any, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    task.failing = {1: RuntimeError("boom"), 2: 3, 3: SystemExit(4)}
    arguments = ("--multirun", "size=tiny", "codec=bf16", "seed=range(0,4)")
    assert run_py(*arguments) == 1
    assert [config.seed for config, _ in task.ran] == [0, 1, 2, 3]
    printed = capsys.readouterr()
    failed = [line for line in printed.out.splitlines() if line.startswith("failed: ")]
    assert [line.split()[1] for line in failed] == ["seed=1", "seed=2", "seed=3"]
    assert "boom" in printed.err
    assert len(finished) == 1
    assert len(finished[0][1]) == 4

    task.ran, task.failing = [], {}
    assert run_py(*arguments) == 0
    assert [config.seed for config, _ in task.ran] == [1, 2, 3]
    assert finished[1][0] == finished[0][0]  # the same sweep, the same tables


def test_nothing_starts_when_one_cell_cannot_run(
    run_py: Callable[..., int], task: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_py("--multirun", "size=tiny", "seed=0,1", "train.lr=0.1,0") == 2
    assert not task.ran
    assert not files_below(tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cell seed=0: train.lr=0: choose a number above 0")
    assert run_py("--multirun", "size=tiny", "codec=bf16,dynamic") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: codec=dynamic is unknown; choose one of")  # what differs is said


def test_the_sweeps_directory_can_be_replaced(
    run_py: Callable[..., int], task: Any, finished: Finished, tmp_path: Path
) -> None:
    assert run_py("--multirun", "size=tiny", "seed=0,1", "hydra.sweep.dir='my sweep'") == 0
    assert {directory.parent for _, directory in task.ran} == {Path("my sweep")}
    assert finished[0][3] == Path("my sweep")
    assert all(file.startswith("my sweep/") for file in files_below(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sweeps=demo", "size=small"), "size=small: this sweep has no cases for it; choose size=tiny"),
        (("--multirun", "size=tiny", "seed=0,1", "hydra.run.dir=x"), "use hydra.sweep.dir=x"),
    ],
)  # fmt: skip
def test_one_line_refusals(
    arguments: tuple[str, ...], said: str, run_py: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_py(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_sweep_under_torchrun_is_refused_with_the_command_to_use(
    run_py: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert run_py("--multirun", "size=tiny", "seed=0,1") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("use env -u RANK python run.py --multirun size=tiny seed=0,1")
    assert "RANK=0 is set" in line


@pytest.mark.usefixtures("task")
def test_derived_differences_are_axes_too(run_py: Callable[..., int], finished: Finished) -> None:
    """The recipe's micro-batch is the training's, too."""
    run_py("--multirun", "size=tiny", "model.recipe.micro_batch=1,2")
    assert finished[0][2] == ["model.recipe.micro_batch", "train.micro_batch"]


def test_virtual_runs_of_a_sweep_share_a_profile(
    run_py: Callable[..., int], task: Any, finished: Finished, tmp_path: Path
) -> None:
    arguments = ("--multirun", "size=tiny", "cluster=virtual", "codec=bf16")
    assert run_py(*arguments, "seed=0") == 0  # outside of a sweep a run measures
    assert run_py(*arguments, "seed=1,2") == 0
    assert run_py(*arguments, "seed=3,4", "network.compute=measured") == 0
    assert run_py("--multirun", "size=tiny", "codec=bf16", "seed=5,6") == 0  # real workers
    asked = [own_profile(directory) for _, directory in task.ran]
    assert [profile is not None for profile in asked] == [False, True, True, *[False] * 4]
    output = finished[1][3]
    for (_, directory), profile in list(zip(task.ran, asked, strict=True))[1:3]:
        assert profile is not None
        assert sweep_folder(directory.absolute(), profile) == tmp_path / output / "profiles"


def test_a_finished_runs_profile_is_the_sweeps(
    run_py: Callable[..., int], task: Any, finished: Finished
) -> None:
    arguments = ("--multirun", "size=tiny", "cluster=virtual", "codec=bf16")
    assert run_py(*arguments, "seed=0") == 0
    spread, origin = Quantiles(1.0, 2.0, 3.0, 4), Origin("", 1, "", None, "", "bf16", 10)
    known = Computation("0123456789ab", {}, spread, [LaneStretch("update", 0, spread)], origin)
    ((_, directory),) = task.ran
    keep_profile(directory / "profile.json", Profile([known]))
    assert run_py(*arguments, "seed=0,1") == 0
    assert read_profiles(finished[1][3] / "profiles").computations == [known]


def test_minutes_limit_cells_that_start_one_after_another(finished: Finished, tmp_path: Path) -> None:
    def started(*, sequential: bool, minutes: float | None) -> int:
        plan = SimpleNamespace(settings=SweepConfig(minutes=minutes), with_needs=[], output=tmp_path)
        return run_sweep(cast(Plan, plan), lambda overrides, first: [], sequential=sequential)

    assert started(sequential=True, minutes=5.0) == 0
    assert started(sequential=True, minutes=None) == 0
    assert started(sequential=False, minutes=None) == 0
    with pytest.raises(
        ConfigError, match="sweep.minutes=5 has no effect with a launcher that starts all cells"
    ):
        started(sequential=False, minutes=5.0)
