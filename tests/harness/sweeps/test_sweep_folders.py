"""The folder of a sweep follows from its cells: no sweep takes the place of another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from gradwire.harness.report.sweep_record import read_sweep_record
from gradwire.harness.report.tables import Page, Table
from gradwire.harness.sweeps.cells import SweepCell
from gradwire.harness.sweeps.planned_cell import ComposedCell
from gradwire.harness.sweeps.record import SweptCell, SweptCells, write_sweep_record

SWEEPS = Path("outputs/sweeps")
DEMO = ("sweeps=demo", "size=tiny")


@pytest.fixture
def comparing(task: Any) -> None:
    """Tables of the fake task: a line for each run."""

    def compare(folders: Sequence[Path], output: Path, axes: Sequence[str]) -> Page:
        page = Page([Table("runs", ["run", "axes"], [[folder.name, str(axes)] for folder in folders])], [])
        page.write(output, [{"run": folder.name} for folder in folders], {})
        return page

    task.compare = compare


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def said(capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder that a sweep names in its last line."""
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("sweep: ")
    return Path(last.removeprefix("sweep: "))


@pytest.mark.usefixtures("comparing")
def test_a_smaller_sibling_leaves_the_demos_tables(
    run_py: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_py(*DEMO) == 0
    assert said(capsys) == SWEEPS / "demo-tiny"
    before = contents(SWEEPS / "demo-tiny")
    assert {path.name for path in before} >= {"table.md", "table.csv", "table.json", "sweep.json"}
    assert run_py(*DEMO, "codec=bf16") == 0
    sibling = said(capsys)
    assert re.fullmatch(r"demo-tiny-[0-9a-f]{12}", sibling.name) and sibling.parent == SWEEPS
    assert contents(SWEEPS / "demo-tiny") == before
    assert "Sweep demo-tiny-" in (sibling / "table.md").read_text()
    assert ", with codec=bf16." in (sibling / "table.md").read_text()
    assert ", with " not in (SWEEPS / "demo-tiny" / "table.md").read_text()
    record = read_sweep_record(sibling)
    assert (record.folder, record.overrides) == (sibling.name, ["codec=bf16"])
    assert read_sweep_record(SWEEPS / "demo-tiny").overrides == []


@pytest.mark.usefixtures("comparing")
def test_the_same_cells_come_back_to_the_same_folder(
    run_py: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    no_effect = ("plots=false", "train.log_every=7", "cluster.workers=4", "sweep.minutes=9")
    found = list[Path]()
    for more in (("train.steps=30",), ("train.steps=30", *no_effect), no_effect):
        assert run_py(*DEMO, *more) == 0
        found.append(said(capsys))
    assert found[0] == found[1] != found[2] == SWEEPS / "demo-tiny"


def stranger(folder: Path, run: Path) -> None:
    """Puts the record of a sweep of one run to `folder`."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 0\ntask: {name: replay}\n")
    (run / "FAILED").write_text("it ran out of memory\n")
    cell = SweptCell("codec=other", run, {"task": {"name": "replay"}, "seed": 0})
    write_sweep_record(folder, SweptCells("demo", "tiny", "run.py", [], [cell], folder=folder.name))


@pytest.mark.usefixtures("comparing")
def test_tables_of_other_cells_stay(run_py: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of data that has changed, or of an earlier sweep."""
    stranger(SWEEPS / "demo-tiny", Path("outputs/other-s0-0123456789ab"))
    before = contents(SWEEPS / "demo-tiny")
    for _ in range(2):
        assert run_py(*DEMO) == 0
        output = capsys.readouterr().out
        assert f"note: {SWEEPS}/demo-tiny has the tables of other cells (codec=other); those of" in output
        folder = Path(output.splitlines()[-1].removeprefix("sweep: "))
    assert contents(SWEEPS / "demo-tiny") == before
    assert folder.name.startswith("demo-tiny-") and read_sweep_record(folder).folder == folder.name
    (SWEEPS / "demo-tiny" / "sweep.json").write_text("{")  # a damaged record is to be written anew
    assert run_py(*DEMO) == 0
    assert said(capsys) == SWEEPS / "demo-tiny"
    assert json.loads((SWEEPS / "demo-tiny" / "sweep.json").read_text())["folder"] == "demo-tiny"


@pytest.mark.usefixtures("comparing")
def test_a_folder_that_was_asked_for_is_refused_if_it_has_other_tables(
    run_py: Callable[..., int], task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger(Path("mine"), Path("mine/other-s0-0123456789ab"))
    assert run_py(*DEMO, "hydra.sweep.dir=mine") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hydra.sweep.dir=mine has the tables of a sweep with other cells (codec=other)" in line
    assert not task.ran


def test_a_description_has_words_for_the_paths_of_needed_cells() -> None:
    def description(path: str, seed: int, *sources: Any) -> str:
        cell = SweepCell((), {"run": "warm:run", "seed": f"{seed}", "axis": "no setting"}, sources)
        composed = ComposedCell(cell, DictConfig({}), None)
        vars(composed)["config"] = SimpleNamespace(mapping=lambda: {"run": path, "seed": seed})
        return composed.description

    needed, other = SimpleNamespace(label="seed=0"), SimpleNamespace(label="seed=1")
    first = description("outputs/first", 0, needed)
    assert first == description("outputs/second", 0, needed)
    assert "warm:run" in first and "axis" not in first
    assert first != description("outputs/first", 0, other) != description("outputs/first", 1, other)
    assert description("outputs/first", 0) != description("outputs/second", 0)
