"""`task=runs` and `task=compare`: what they print of finished, failed, running and damaged runs."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.harness.record.directory import DirectoryLock
from gradwire.harness.report.configs import holders_by_key
from gradwire.harness.tasks.compare import differences_table, differing_axes

RECORDED = Path(__file__).parent.parent / "studies" / "recorded"

Command = Callable[..., int]


@pytest.fixture
def replays(tmp_path: Path) -> list[str]:
    """Two finished replays, and what the sweep of a killed, a failed and a damaged one leaves."""
    outputs = tmp_path / "outputs"
    names = {"bf16": "replay-zero-1111aaaa2222", "dynamiq": "replay-dynamiq-1111bbbb2222"}
    for source, name in names.items():
        shutil.copytree(RECORDED / "replay" / source, outputs / name)
    for name in ("killed", "failed", "damaged"):
        shutil.copytree(RECORDED / "replay" / "thc", outputs / name)
        if name != "damaged":
            (outputs / name / "DONE").unlink()
    (outputs / "failed" / "FAILED").write_text("no space left\n")
    (outputs / "damaged" / "summary.json").write_text("{")
    shutil.copytree(RECORDED / "simulate" / "aqgb", outputs / "simulated")
    return list(names.values())


def test_an_empty_folder_is_one_line(run_py: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_py("task=runs") == 0
    assert capsys.readouterr().out == "no runs in outputs; python run.py size=tiny makes one\n"
    assert run_py("task=runs", "runs.folders=[nowhere]") != 0
    assert "runs.folders=nowhere: no such folder" in capsys.readouterr().err


def test_runs_are_listed_with_state_settings_and_result(
    run_py: Command, replays: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = DirectoryLock(tmp_path / "outputs" / "killed")
    assert run_py("task=runs") == 0
    page = capsys.readouterr().out
    lock.release()
    lines = {line.split()[0]: line for line in page.splitlines() if line and line[0].isalpha()}
    assert " done " in lines[replays[0]] and " bf16 " in lines[replays[0]]
    assert " running " in lines["killed"]
    assert " failed " in lines["failed"] and "no space left" in lines["failed"]
    assert " damaged " in lines["damaged"]
    assert page.index("task=replay") < page.index("task=simulate")
    assert "6 of 6 runs in outputs: " in page and "3 done" in page
    assert run_py("task=runs", "runs.state=interrupted") == 0
    assert "1 of 6 runs in outputs: 1 interrupted" in capsys.readouterr().out


def test_runs_are_chosen_and_sorted(
    run_py: Command, replays: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_py("task=runs", "runs.match=replay-", "runs.sort=metric") == 0
    page = capsys.readouterr().out
    assert "2 of 6 runs" in page and page.index(replays[0]) < page.index(replays[1]), (
        "the smaller error first"
    )
    assert run_py("task=runs", "runs.match=nothing") == 0
    assert capsys.readouterr().out == "none of the 6 runs in outputs fits\n"


def test_sweeps_are_listed(run_py: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recorded = next((Path(__file__).parents[3] / "results").glob("*/small/sweep.json")).parent
    for name in ("whole", "broken"):
        shutil.copytree(recorded, tmp_path / "outputs" / name)
    (tmp_path / "outputs" / "broken" / "values.csv.gz").write_text("")
    assert run_py("task=runs") == 0
    page = capsys.readouterr().out
    lines = {line.split()[0]: line for line in page.splitlines() if line and line[0].isalpha()}
    assert page.startswith("sweeps\n")
    assert " done " in lines["whole"] and " damaged " in lines["broken"]


def test_finished_runs_are_compared_by_name_pattern_and_id(
    run_py: Command, replays: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_py("task=compare", f"runs=[1111aaaa,{replays[1]}]") == 0
    page = capsys.readouterr().out
    assert "How the configurations differ" in page and "codec.name" in page
    (output,) = (tmp_path / "outputs" / "comparisons").iterdir()
    assert page.endswith(f"tables and plots in {output.relative_to(tmp_path)}\n")
    with (output / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["codec"] for row in rows] == ["bf16", "dynamiq"]
    assert "How the configurations differ" in (output / "table.md").read_text()
    assert list(output.glob("frontier-print.svg"))
    assert run_py("task=compare", "runs=outputs/replay-*", "compare.output=mine") == 0
    with (tmp_path / "mine" / "table.csv").open() as file:
        assert list(csv.DictReader(file)) == rows[::-1], "in the order of their names"


@pytest.mark.parametrize(
    ("runs", "refusal"),
    [
        (
            "[nothing,1111aaaa]",
            "runs=nothing: not a run directory, and neither a name nor the beginning of an id",
        ),
        ("1111", "runs=1111: begins the ids of replay-dynamiq-1111bbbb2222, replay-zero-1111aaaa2222"),
        ("[1111aaaa,killed]", "runs=outputs/killed: is interrupted, and only finished runs are compared"),
        ("[1111aaaa,failed]", "runs=outputs/failed: is failed, and only finished runs are compared"),
        ("[1111aaaa,damaged]", "outputs/damaged/summary.json: differs from its digest in DONE"),
        ("[1111aaaa,simulated]", "runs of several tasks cannot be compared: "),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    runs: str, refusal: str, run_py: Command, replays: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_py("task=compare", f"runs={runs}") != 0
    said = capsys.readouterr().err
    assert said.startswith(f"error: {refusal}") and said.count("\n") == 1


def test_differences_are_listed_by_key_with_all_values() -> None:
    common = {"model.name": "gpt2", "seed": 0}
    configs = {
        "a": {**common, "codec.name": "bf16", "plots": True},
        "b": {**common, "codec.name": "dynamiq", "codec.bits": 4, "plots": False},
        "c": {**common, "codec.name": "dynamiq", "codec.bits": 4, "plots": False, "seed": 1},
    }
    assert holders_by_key(configs)["codec.name"] == {"bf16": ["a"], "dynamiq": ["b", "c"]}
    assert differing_axes(configs) == ["codec"]
    assert differences_table(configs).rows == [
        ["codec.name", "bf16", "a"],
        ["codec.name", "dynamiq", "b, c"],
        ["plots", "True", "a"],
        ["plots", "False", "b, c"],
        ["seed", "0", "a, b"],
        ["seed", "1", "c"],
    ]
    del configs["a"]
    configs["b"] = configs["b"] | {"codec.bits": 5}
    assert differing_axes(configs) == ["codec.bits"]
