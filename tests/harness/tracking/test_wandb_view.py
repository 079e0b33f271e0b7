"""The data in wandb equal the record, however the run ended. Without a server: runs are offline."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY_MODEL
from tracking_records import CONFIG, SUMMARY, append, begin, draw, eval_row, step_row, write
from wandb_file import WandbRun, read_wandb, wandb_folders

from gradwire.harness.config.compose import compose
from gradwire.harness.config.tasks import SyncTask
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.launch import run_here
from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.settings import TaskConfig
from gradwire.harness.tasks import sync
from gradwire.harness.tracking import follow, messages
from gradwire.harness.tracking.follow import tracked
from gradwire.harness.tracking.settings import UntrackedConfig, WandbConfig
from gradwire.harness.trainer.settings import RunConfig


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, without a login, in which nothing may be written."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "WANDB_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("WANDB_USERNAME", "somebody")
    yield folder
    assert not list(folder.iterdir())


def shown(directory: Path) -> WandbRun:
    """The only wandb run of a record."""
    (folder,) = wandb_folders(directory)
    return read_wandb(folder)


def assert_same(found: Any, expected: Any) -> None:
    """Asserts equality value by value and type by type; NaN equals itself."""
    if isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected
        assert isinstance(found, bool) == isinstance(expected, bool)


def assert_holds(view: WandbRun, directory: Path) -> None:
    """History, tables and summary are the record's."""
    steps, evals = read_rows(directory / "steps.jsonl"), read_rows(directory / "evals.jsonl")
    assert_same(view.rows("train"), steps)
    assert_same(view.rows("eval"), evals)
    tables = view.tables()
    for name, rows in (("steps", steps), ("evals", evals)):
        table = tables[name]
        assert set(table["columns"]) == {key for row in rows for key in row}
        expected = [[row.get(column) for column in table["columns"]] for row in rows]
        assert_same(table["data"], expected)
    summary = json.loads((directory / "summary.json").read_text())  # "nan" and "inf" stay text there
    assert_same({key: view.summary.get(key) for key in summary}, summary)


def test_a_finished_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "5" * 40)
    monkeypatch.setattr(Path, "home", lambda: Path(CONFIG["dataset"]["path"]).parent)
    directory = write(tmp_path / "the-run")
    plot = draw(directory / "plots" / "metric-print.png")
    draw(directory / "plots" / "metric-dark.png")
    assert follow.upload_recorded(CONFIG["tracking"], directory)
    view = shown(directory)
    assert_holds(view, directory)
    assert view.plots() == {"metric": plot}
    assert view.axes == {"train/*": "train/step", "eval/*": "eval/train_time_s"}
    assert view.exit_codes == [0]
    assert view.summary["status"] == "done"
    run = view.run
    assert run.run_id.startswith(f"{SUMMARY.config_hash}-1-")
    assert (run.display_name, run.run_group, run.job_type) == ("the-run", "demo-tiny", "train")
    choices = ["train", "tiny", "dynamiq", "ring", "ddp", "emulated 200 Mbit/s"]
    assert (run.project, list(run.tags)) == ("gradwire", [*choices, "a", "b"])
    given = {key: value for key, value in view.config.items() if key != "_wandb"}
    assert_same(given, CONFIG | {"dataset": {"name": "text", "path": "~/texts"}})
    data = {name: table["data"] for name, table in view.tables().items()}
    assert_same(data["vnmse"], [[0, 0.25], [2, 0.25], [4, 0.25]])
    links = "emulated, 200 Mbit/s, paced"
    assert_same(data["time_to_accuracy"], [
        [20.5, math.inf, None, None, "simulated", links],
        [300.0, 0.5, 2, True, "simulated", links],
    ])  # fmt: skip
    assert [row[:2] for row in data["breakdown"]] == [
        ["compute", 0.125], ["compression", 0.0625], ["exposed communication", 0.03125], ["other", 0.0]
    ]  # fmt: skip
    assert data["bytes_by_phase"] == [["metadata", 1], ["reduce_scatter", 200]]
    assert data["bytes_by_rank"] == [[0, 100], [1, 101]]
    assert_private(view)
    left = [path for path in (directory / "wandb").rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert left == [], "folders of wandb's that hold nothing"
    assert {path.name for path in tmp_path.iterdir()} == {"home", "the-run"}


def assert_private(view: WandbRun) -> None:
    """No host, user, key, code or output is in any file of the run."""
    assert not view.run.host
    assert not view.run.HasField("git")
    assert not view.kinds & {"environment", "output", "output_raw", "stats", "use_artifact"}
    for path in (path for path in view.folder.parent.rglob("*") if path.is_file()):
        assert b"somebody" not in path.read_bytes(), path
        assert b"5" * 40 not in path.read_bytes(), path
    assert not list(view.folder.rglob("*.py"))


def test_a_run_that_raises_ends_as_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its second attempt: the rows of both are shown, whole lines only; the reason is the record's."""
    directory = begin(tmp_path / "run", attempts=2)
    append(directory, "steps.jsonl", [step_row(0)])  # the first attempt's
    tracking = WandbConfig(**CONFIG["tracking"])
    with pytest.raises(RuntimeError, match="boom"), tracked(tracking, CONFIG, directory):
        append(directory, "steps.jsonl", [step_row(1)])
        append(directory, "evals.jsonl", [eval_row(2)])
        (directory / "FAILED").write_text("rank 1 failed: boom\n")
        with (directory / "steps.jsonl").open("a") as file:
            file.write('{"step": 2, "lo')
        raise RuntimeError("boom")
    view = shown(directory)
    assert_same(view.rows("train"), [step_row(0), step_row(1)])
    assert_same(view.rows("eval"), [eval_row(2)])
    assert view.exit_codes == [1]
    assert (view.summary["status"], view.summary["reason"]) == ("failed", "rank 1 failed: boom")
    assert view.run.run_id.startswith(f"{SUMMARY.config_hash}-2-")
    printed = capfd.readouterr()
    (line,) = printed.out.splitlines()
    assert line.startswith("wandb: offline run in ")
    assert line.endswith(f"wandb sync {line.split()[4].rstrip(';')}")
    assert printed.err == ""


def test_a_run_whose_process_is_killed_ends_as_failed(tmp_path: Path) -> None:
    """No message says how it ended: the input of the process that shows it is closed, that is all."""
    directory = begin(tmp_path / "run")
    message = messages.opening(CONFIG, CONFIG["tracking"], directory, "id-1", 0.0)
    follower = follow.Follower(message, directory)
    append(directory, "steps.jsonl", [step_row(0)])
    assert follower._process.stdin is not None
    follower._process.stdin.close()
    assert follower._process.wait(60) == 0
    view = shown(directory)
    assert view.exit_codes == [1]
    assert view.summary["reason"] == "the run's process was killed"
    assert_same(view.rows("train"), [step_row(0)])


def test_without_an_answer_from_the_server_the_view_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "5" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(messages.QUIET, "init_timeout", 0.2)
    directory = write(tmp_path / "run", mode="auto")
    assert follow.upload_recorded(CONFIG["tracking"] | {"mode": "auto"}, directory)
    offline = next(path for path in wandb_folders(directory) if path.name.startswith("offline-run-"))
    assert_holds(read_wandb(offline), directory)
    assert capfd.readouterr().out.startswith("wandb: offline run in ")


def tiny_config(text: Path) -> RunConfig:
    """Four steps of two virtual workers on a text that is prepared in no time."""
    words = random.Random(0).choices([f"word{number}" for number in range(300)], k=20_000)
    text.write_text("\n\n".join(" ".join(words[start : start + 50]) for start in range(0, len(words), 50)))
    length = ("train.steps=4", "train.log_every=1", "eval.max_sequences=4", "measure.targets=[1000,2]")
    workers = ("cluster=virtual", "cluster.workers=2", f"dataset.path={text}")
    return validate(compose([*TINY_MODEL, *length, *workers, "tracking=wandb"]))


def test_a_real_run_and_its_view_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "run"
    plots = list[bytes]()

    def draw_plots() -> None:
        assert (directory / "DONE").is_file(), "plots are of finished runs"
        plots.append(draw(directory / "plots" / "metric-print.png"))

    run_here(tiny_config(tmp_path / "text.txt"), directory, draw_plots)
    view = shown(directory)
    assert_holds(view, directory)
    assert [view.plots()] == [{"metric": plot} for plot in plots]
    assert {"tiny", "ddp", "modelled"} <= set(view.run.tags)
    assert view.exit_codes == [0]
    assert len(view.tables()["time_to_accuracy"]["data"]) == 2
    (directory / "DONE").unlink()
    assert sync.run(SyncTask(task=TaskConfig("sync"), run=str(tmp_path), tracking=UntrackedConfig())) == 0
    rebuilt = read_wandb(wandb_folders(directory)[-1])
    assert rebuilt.folder != view.folder
    assert rebuilt.run.run_id == view.run.run_id
    assert_same(rebuilt.rows("train"), view.rows("train"))
    assert_same(rebuilt.rows("eval"), view.rows("eval"))
    assert rebuilt.exit_codes == [1], "what has not finished is no success"
    assert rebuilt.plots() == {}, "and plots are of finished runs"
    assert rebuilt.config == json.loads(json.dumps(view.config))
