"""Sweeps that take gradients, runs and checkpoints from the cells of others, and that mix tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from tiny import TINY_MODEL

from gradwire.harness.config.compose import _composed, compose
from gradwire.harness.config.own_files import use_folder
from gradwire.harness.report.sweep_record import read_sweep_record
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps import run
from gradwire.harness.sweeps.plan import Plan, plan_sweep, sweep_axes

WARM = """\
# @package _global_
plots: false
hydra:
  mode: MULTIRUN
  sweeper:
    common:
      tiny:
        {cluster: virtual, cluster.workers: 2, train.steps: 3, train.warmup_steps: 1,
         measure.save_gradients_at: [1, 2]}
    cases:
      tiny:
        - {model: [gpt2, llama1b], codec: fp32, seed: [0, 1]}
"""

USE = """\
# @package _global_
plots: false
hydra:
  mode: MULTIRUN
  sweeper:
    needs: {warm: warm}
    common:
      tiny: {replay.repeats: 2}
    cases:
      tiny:
        - {task: replay, gradients: {from: warm, take: gradients, step: 1}, codec: [bf16, mxfp4]}
        - {task: retime, run: {from: warm, take: run, where: {model: gpt2}}, network.rate_mbit: [10, 100]}
"""


def sweep_file(needs: str, case: str, size: str = "tiny") -> str:
    head = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n"
    return f"{head}    needs: {needs}\n    cases:\n      {size}: [{case}]\n"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes sweeps known as if they were the project's. (A user's own files are composed twice.)"""
    repo: Any = ConfigStore.instance().repo
    monkeypatch.setitem(repo, "sweeps", {})
    monkeypatch.setattr(
        "gradwire.harness.config.compose.plugin_choices",
        lambda: {"sweeps": [file.removesuffix(".yaml") for file in repo["sweeps"]]},
    )
    _composed.cache_clear()

    def add(**files: str) -> None:
        for name, text in files.items():
            node = OmegaConf.create(text)
            ConfigStore.instance().store(name, node, group="sweeps", package="_global_", provider="tests")

    yield add
    _composed.cache_clear()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Writes sweeps of the user's own and makes them known."""
    folder = tmp_path / "own"

    def write(**files: str) -> None:
        (folder / "sweeps").mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / "sweeps" / f"{name}.yaml").write_text(text)
        use_folder(str(folder))

    yield write
    use_folder(None)


def planned(*arguments: str) -> Plan:
    lines = ["size=tiny", *arguments]
    return plan_sweep(compose(lines[:2], with_hydra=True).hydra, lines)


def labels(plan: Plan) -> list[str]:
    return [cell.label for cell in plan.cells]


def test_needed_cells_give_values_and_axes(known: Callable[..., None]) -> None:
    known(warm=WARM, use=USE)
    plan = planned("sweeps=use")
    (warm,) = plan.needs
    assert len(warm.cells) == 4 and all(cell.directory for cell in warm.cells)
    assert labels(plan)[:4] == [
        f"task=replay codec=bf16 model={model} seed={seed} gradients=warm:step1"
        for model in ("gpt2", "llama1b")
        for seed in (0, 1)
    ]
    assert labels(plan)[-1] == "task=retime network.rate_mbit=100 model=gpt2 seed=1 run=warm:run"
    assert len(plan.cells) == 2 * 4 + 2 * 2
    assert not any(cell.directory for cell in plan.cells)  # their ids depend on files still to be made
    replays = plan.of_task("replay")
    assert {"codec", "model"} <= set(sweep_axes(replays)) and "seed" not in sweep_axes(replays)
    assert [cell.config.seed for cell in replays[:2]] == [0, 1]  # paired
    takes = {cell.cell.sources[0].label: cell.config.gradients for cell in replays}
    for source in warm.cells:
        assert takes[source.cell.label] == f"{source.directory}/gradients/step1.safetensors"


def test_a_row_is_one_value(known: Callable[..., None]) -> None:
    """Every needed cell gives each row once; single steps beside it are cells of their own."""
    row = USE.replace("step: 1}", "row: [1-2, 0-1]}")
    known(warm=WARM.replace("[1, 2]", "[0-2]"), use=row)
    plan = planned("sweeps=use")
    replays = plan.of_task("replay")
    assert len(replays) == 2 * 4 * 2
    first = replays[0]
    assert first.label == "task=replay codec=bf16 model=gpt2 seed=0 gradients=warm:step1-2"
    folder = f"{plan.needs[0].cells[0].directory}/gradients"
    assert first.config.gradients == [f"{folder}/step1.safetensors", f"{folder}/step2.safetensors"]
    assert first.needed["gradients"] == "warm:step1-2"
    known(use=row.replace("0-1", "1-3"))
    _composed.cache_clear()
    with pytest.raises(ConfigError, match="step 3 of warm is not kept, its steps kept are 0, 1, 2; choose"):
        planned("sweeps=use")


def test_the_command_line_reaches_what_it_is_about(known: Callable[..., None]) -> None:
    known(warm=WARM, use=USE)
    plan = planned("sweeps=use", "seed=1", "train.steps=4", "replay.rounds=3", "network.rate_mbit=50")
    assert [cell.config.seed for cell in plan.needs[0].cells] == [1, 1]
    assert {cell.config.train.steps for cell in plan.needs[0].cells} == {4}
    assert {cell.config.replay.rounds for cell in plan.of_task("replay")} == {3}
    assert len(plan.of_task("retime")) == 1
    two = planned("sweeps=use", "seed=1,2")
    assert [cell.config.seed for cell in two.needs[0].cells] == [1, 1, 2, 2]
    assert [cell.config.seed for cell in two.of_task("replay")] == [1] * 4 + [2] * 4


TRAIN = "{codec: fp32, seed: [0, 1], measure.save_gradients_at: [[2]]}"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"a": sweep_file("{x: b}", "{seed: 1}"), "b": sweep_file("{y: a}", "{seed: 1}")},
            "its needs lead in a circle, a -> b -> a",
        ),
        ({"a": sweep_file("{x: dem}", "{seed: 1}")}, "needs x: dem, which is not a sweep; choose one of"),
        ({"a": sweep_file("{x: demo}", "{seed: 1}", "gpu")}, "a needs demo: size=gpu: this sweep has no"),
        (
            {
                "a": sweep_file("{x: b}", "{task: replay, gradients: {from: x, take: gradients, step: 1}}"),
                "b": sweep_file("{}", TRAIN),
            },
            "gradients: step 1 of x is not kept, its steps kept are 2",
        ),
        (
            {
                "a": sweep_file("{x: b}", "{task: retime, run: {from: x, take: run, where: {codec: thc}}}"),
                "b": sweep_file("{}", TRAIN),
            },
            "run: no cell of x fits codec=[thc]",
        ),
        (
            {"a": sweep_file("{x: demo}", "{run: {from: y, take: run}}")},
            "from: y is not a name in needs; needs has x",
        ),
        (
            {"a": sweep_file("{x: demo}", "{run: {from: x, take: it}}")},
            "take: it: choose gradients, weights, run, check",
        ),
        (
            {"a": sweep_file("{x: demo}", "{run: {from: x, take: run, step: 1}}")},
            "leave it out with take: run",
        ),
        ({"a": sweep_file("{x: demo}", "{run: {from: x, taken: run}}")}, "taken is unknown in"),
        (
            {"a": sweep_file("{x: demo}", "{gradients: {from: x, take: gradients, row: 9-2}}")},
            "row: 9-2: choose a first and a last step, e.g. 100-109, at most 10000 steps",
        ),
        (
            {"a": sweep_file("{x: demo}", "{gradients: {from: x, take: gradients, row: 1-2, step: 1}}")},
            "row: 1-2: cannot be used with step; leave one out",
        ),
        (
            {"a": sweep_file("{x: demo}", "{gradients: {from: x, take: weights, row: 1-2}}")},
            "row: 1-2: cannot be used with take: weights; leave one out",
        ),
    ],
)
def test_wrong_needs_are_refused_in_one_line(
    files: dict[str, str], said: str, known: Callable[..., None], run_py: Callable[..., int], capsys: Any
) -> None:
    known(**files)
    size = "gpu" if "gpu:" in files["a"] else "tiny"
    assert run_py("sweeps=a", f"size={size}", "dataset=embedded") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not Path("outputs").exists()


def test_a_list_of_needs_is_refused_in_one_line(
    own: Callable[..., None], run_py: Callable[..., int], capsys: Any
) -> None:
    own(a=sweep_file("[demo]", "{seed: 1}"))
    assert run_py("--config-dir", "own", "sweeps=a", "size=tiny") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hydra.sweeper.needs=[demo]: choose a mapping of names" in line


def test_a_cell_of_no_needed_one_is_refused(known: Callable[..., None]) -> None:
    known(warm=WARM, use=USE.replace("{task: replay", "{seed: 7, task: replay"))
    with pytest.raises(ConfigError, match=r"gradients: no cell of warm goes with seed=7"):
        planned("sweeps=use")


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.harness.report.figures._write", lambda *_: iter(()))


@pytest.mark.usefixtures("no_plots", "in_this_process")
def test_needed_cells_run_first_and_each_task_has_its_tables(
    known: Callable[..., None], run_py: Callable[..., int], capsys: Any
) -> None:
    known(warm=WARM, use=USE)
    command = ("sweeps=use", *TINY_MODEL, "seed=0", "network.rate_mbit=10")
    assert run_py(*command) == 0
    (output,) = Path("outputs/sweeps").glob("use-tiny-*")
    (needed,) = Path("outputs/sweeps").glob("warm-tiny-*")
    rows = json.loads((output / "replay/table.json").read_text())["rows"]
    assert len(rows) == 4 and json.loads((output / "retime/table.json").read_text())["rows"]
    record = read_sweep_record(output)
    assert [cell.status for cell in record.cells] == ["done"] * 5
    assert {cell.axes["model"] for cell in record.cells} == {"gpt2", "llama1b"}
    assert len({cell.run for cell in record.cells}) == 5
    assert read_sweep_record(needed).text == "embedded"
    capsys.readouterr()
    files = [path for path in Path("outputs/sweeps").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert run_py(*command) == 0
    said = capsys.readouterr().out
    assert f"sweep {needed.name}: 2 runs, 2 of them finished before" in said
    assert f"sweep {output.name}: 5 runs, 5 of them finished before" in said
    assert {path: path.read_bytes() for path in files} == before


@pytest.mark.usefixtures("in_this_process")
def test_what_needs_a_failed_cell_fails_with_it(
    own: Callable[..., None], run_py: Callable[..., int], task: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(run, "finish_sweep", lambda plan: None)
    own(warm=WARM, use=USE)
    task.failing = {0: RuntimeError("boom")}
    assert run_py("--config-dir", "own", "sweeps=use", "size=tiny", "model=gpt2", "seed=0") == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 1 + 4
    assert failed[-1].endswith("(a cell that it needs did not finish)")
