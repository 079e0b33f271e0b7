"""A run continues whatever happens to the process that shows it; and the messages for that process."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tracking_records import CONFIG, SUMMARY, append, begin, draw, step_row, write

from gradwire.harness.config.tasks import SyncTask
from gradwire.harness.record.directory import DirectoryLock
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.settings import TaskConfig
from gradwire.harness.tasks import sync
from gradwire.harness.tracking import follow, messages
from gradwire.harness.tracking.follow import tracked
from gradwire.harness.tracking.settings import UntrackedConfig, WandbConfig
from gradwire.harness.tracking.tables import MOST_ROWS, curve, tables
from gradwire.harness.tracking.view import Tail, _show, number


def shown_by(directory: Path, **tracking: Any) -> AbstractContextManager[None]:
    """The run of `CONFIG` while it is shown."""
    chosen = CONFIG["tracking"] | tracking
    settings = UntrackedConfig() if chosen["name"] == "none" else WandbConfig(**chosen)
    return tracked(settings, CONFIG | {"tracking": chosen}, directory)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import time; time.sleep(60)", "no answer within 0.3 s"),
        ("import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("import sys; sys.stdin.readline(); sys.exit(1)", ""),
    ],
)
def test_a_view_that_fails_is_one_warning(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that ends with code 1 has printed its own message."""
    (tmp_path / "view.py").write_text(script)
    monkeypatch.setattr(follow, "VIEW", tmp_path / "view.py")
    monkeypatch.setattr(follow, "PATIENCE_S", 0.3 if "sleep" in script else 60)
    with shown_by(begin(tmp_path / "run")):
        pass
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == bool(said)
    for line in lines:
        assert line.startswith("warning: not shown in wandb: ")
        assert said in line
        assert line.endswith(f"task=sync run={tmp_path / 'run'} shows the record")


def test_a_view_that_cannot_be_started_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with shown_by(begin(tmp_path / "run")):
        pass
    (line,) = capfd.readouterr().err.splitlines()
    assert "no-python" in line


def test_without_wandb_the_view_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Started in a Python that finds no packages: the real process, up to the import."""
    directory = begin(tmp_path / "run")
    message = messages.opening(CONFIG, CONFIG["tracking"], directory, "id", 0.0)
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(follow.VIEW)],
        input=json.dumps(message) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"warning: not shown in wandb: No module named 'wandb'; task=sync run={directory} shows the record\n"
    )


@pytest.mark.parametrize("tracking", [{"name": "none"}, {"mode": "disabled"}, {"mode": "auto"}])
def test_nothing_is_started_where_nothing_is_asked_for(
    tracking: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(follow, "Follower", None)
    with shown_by(begin(tmp_path / "run"), **tracking):
        pass
    assert not (tmp_path / "run" / "wandb").exists()


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    tail = Tail(str(path))
    assert list(tail.lines()) == []
    path.write_text("a\nb\nc")
    assert list(tail.lines()) == ["a", "b"]
    assert list(tail.lines()) == []
    with path.open("a") as file:
        file.write("d\u2028e\n\n")
    assert list(tail.lines()) == ["cd\u2028e", ""]
    path.write_text("a\n")  # cut in place
    assert list(tail.lines()) == ["a"]
    (tmp_path / "new").write_text("longer than before\n")
    (tmp_path / "new").replace(path)  # another file of the same name
    assert list(tail.lines()) == ["longer than before"]


def test_rows_are_shown_while_the_run_goes_on() -> None:
    order: list[str] = []

    class Ended:
        content = {"exit_code": 0}
        waits = iter([False, False, True])

        def wait(self, seconds: float) -> bool:
            order.append("wait")
            return next(self.waits)

    class View:
        offline, url = False, "https://own.example/run"

        def show_new_rows(self) -> None:
            order.append("rows")

        def end(self, content: dict[str, int]) -> None:
            order.append(f"end {content['exit_code']}")

    said = io.StringIO()
    _show(View(), Ended(), said)  # type: ignore[arg-type]
    assert order == ["wait", "rows", "wait", "rows", "wait", "rows", "end 0"]
    assert said.getvalue() == "wandb: https://own.example/run\n"


def test_numbers_that_the_record_writes_as_text() -> None:
    assert [number(value) for value in ("inf", "-inf", "other", None, [1])] == [
        float("inf"), float("-inf"), "other", None, [1]
    ]  # fmt: skip
    assert number("nan") != number("nan")


def test_long_curves_are_thinned_and_short_ones_whole() -> None:
    rows = [{"step": step} | ({"vnmse": 0.5} if step % 2 else {}) for step in range(2 * MOST_ROWS + 1)]
    thin = curve(rows)
    assert thin["columns"] == ["step", "vnmse"]
    assert [row[0] for row in thin["rows"]] == list(range(0, 2 * MOST_ROWS + 1, 3))
    whole = curve(rows[:MOST_ROWS])
    assert [row[0] for row in whole["rows"]] == list(range(MOST_ROWS))
    assert whole["rows"][:2] == [[0, None], [1, 0.5]]


def test_a_run_without_breakdown_or_targets_has_no_such_tables(tmp_path: Path) -> None:
    directory = write(tmp_path / "run")
    summary = replace(SUMMARY, figures=SUMMARY.figures | {"compute_s": None}, tta={})
    (directory / "summary.json").write_text(summary.to_json())
    mark_done(directory)
    assert set(tables(load_run(directory))) == {"steps", "evals", "vnmse", "bytes_by_phase", "bytes_by_rank"}


LINKS = "emulated, 200 Mbit/s, paced"


def test_overlap_is_shown_where_it_is_known(tmp_path: Path) -> None:
    directory = write(tmp_path / "run")
    assert "overlap" not in tables(load_run(directory))
    overlap = {"overlap_s": 0.25, "wait_s": 0.0, "row": math.inf, "osf": 1.0}
    summary = replace(SUMMARY, figures=SUMMARY.figures | overlap)
    (directory / "summary.json").write_text(summary.to_json())
    mark_done(directory)
    assert tables(load_run(directory))["overlap"]["rows"] == [
        ["overlap_s", 0.25, "simulated", LINKS],
        ["wait_s", 0.0, "simulated", LINKS],
        ["row", math.inf, "simulated", LINKS],
        ["osf", 1.0, "simulated", LINKS],
    ]


def test_pictures_that_are_none_of_the_record_are_not_shown(tmp_path: Path) -> None:
    directory, elsewhere = write(tmp_path / "run"), tmp_path / "elsewhere-print.png"
    draw(directory / "plots" / "good-print.png")
    draw(directory / "plots" / "vast-print.png", 2**14, 2**14)
    draw(elsewhere)
    (directory / "plots" / "linked-print.png").symlink_to(elsewhere)
    (directory / "plots" / "text-print.png").write_text("no picture")
    assert messages.plots(directory) == {"good": str(directory / "plots" / "good-print.png")}
    assert messages.ending(directory)["plots"] == messages.plots(directory)
    (directory / "DONE").unlink()
    assert messages.ending(directory)["plots"] == {}, "left by an attempt before this one"


@pytest.mark.parametrize(
    ("network", "label"),
    [
        ({"name": "none"}, "measured"),
        ({"name": "shaped", "rate_mbit": 2500}, "emulated 2.5 Gbit/s"),
        ({"name": "simulated", "preset": "custom", "rate_mbit": 100.0}, "modelled 100 Mbit/s"),
        ({"name": "simulated", "preset": "aqgb", "rate_mbit": 2500.0}, "modelled aqgb 2.5 Gbit/s"),
    ],
)
def test_tags_say_what_times_are(network: dict[str, Any], label: str) -> None:
    cluster = {"name": "virtual" if network["name"] == "simulated" else "local"}
    codec = {"name": "package.module:" + "Long" * 20}
    found = messages.tags({"seed": 3, "codec": codec, "cluster": cluster, "network": network})
    assert found == [codec["name"][:64], label]
    assert messages.distinct(["a", "b", "a", ""]) == ["a", "b"]


def test_ids_tell_attempts_apart_and_a_rebuilt_view_keeps_its_own(tmp_path: Path) -> None:
    directory = begin(tmp_path / "run", attempts=2)
    assert messages.new_id(directory) != messages.new_id(directory), "the same run on another machine"
    assert messages.last_id(directory).startswith(f"{SUMMARY.config_hash}-2-")
    for name in (
        f"offline-run-20260101_000000-{SUMMARY.config_hash}-2-aaaa",
        f"run-20260101_000001-{SUMMARY.config_hash}-2-bbbb-1",
        f"run-20260101_000002-{SUMMARY.config_hash}-1-cccc",
    ):
        (directory / "wandb" / name).mkdir(parents=True)
    assert messages.last_id(directory) == f"{SUMMARY.config_hash}-2-bbbb"


def test_how_a_run_ended(tmp_path: Path) -> None:
    unfinished = begin(tmp_path / "unfinished")
    append(unfinished, "steps.jsonl", [step_row(0)])
    told = messages.ending(unfinished)
    assert (told["exit_code"], told["summary"]) == (
        1,
        {"status": "unfinished", "reason": "last recorded step: 0"},
    )
    done = messages.ending(write(tmp_path / "done"))
    assert (done["exit_code"], done["summary"]["status"]) == (0, "done")
    nothing = messages.ending(tmp_path)
    assert (nothing["exit_code"], nothing["summary"]["status"]) == (1, "unreadable")


@pytest.fixture
def uploaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str | None]]:
    """Directory, project and group of what `task=sync` shows."""
    calls: list[tuple[str, str, str | None]] = []

    def upload(tracking: dict[str, Any], directory: Path) -> bool:
        calls.append((directory.name, tracking["project"], tracking["group"]))
        return directory.name != "unlucky"

    monkeypatch.setattr(sync, "upload_recorded", upload)
    return calls


def asked(run: Any, **tracking: Any) -> Any:
    chosen = WandbConfig(**{"name": "wandb"} | tracking) if tracking else UntrackedConfig()
    return SyncTask(task=TaskConfig("sync"), run=run, tracking=chosen)


def test_sync_takes_folders_patterns_and_lists(
    tmp_path: Path, uploaded: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a-s0", "b-s0", "b-s1", "unlucky"):
        write(tmp_path / "outputs" / name)
    inside = tmp_path / "outputs" / "a-s0" / "wandb" / "run-1" / "files"
    inside.mkdir(parents=True)
    (inside / "config.yaml").touch()  # wandb's own
    (tmp_path / "outputs" / "sweeps").mkdir()
    outputs = f"{tmp_path}/outputs"
    for run, names in (
        (f"{outputs}/a-s0", ["a-s0"]),
        (f"{outputs}/*s0", ["a-s0", "b-s0"]),
        ([f"{outputs}/b-s1", f"{outputs}/b*"], ["b-s1", "b-s0"]),
    ):
        uploaded.clear()
        assert sync.run(asked(run)) == 0
        assert [name for name, *_ in uploaded] == names
    assert sync.run(asked(outputs)) == 1, "one of them could not be shown"
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + (1 + 2) + (1 + 2) + (1 + 4), "several are listed before the first one is shown"
    assert printed[1] == f"2 records to show: {outputs}/a-s0, {outputs}/b-s0"
    (tmp_path / "file").touch()
    missing = (f"{outputs}/none", f"{outputs}/sweeps", str(tmp_path / "no-folder-*"), str(tmp_path / "file"))
    for nothing in missing:
        with pytest.raises(ValueError, match="no run directory is there; use run="):
            sync.run(asked(nothing))


@pytest.mark.parametrize("run", ["/", "//", "/.", "/*", "/*/*", "/tmp/..", ["outputs", "//"]])
def test_all_folders_of_the_machine_are_not_searched(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("outputs").mkdir()
    monkeypatch.setattr(sync, "find_runs", lambda folders: [])
    monkeypatch.setattr(sync, "find_sweep_records", lambda folder: ["outputs"])
    monkeypatch.setattr(sync.glob, "iglob", lambda pattern: iter([pattern]))
    with pytest.raises(ValueError, match=r"all folders of the machine would be searched; use run=outputs/"):
        sync.records(run)


def test_sync_shows_a_run_where_it_was_meant_to_be(tmp_path: Path, uploaded: list[Any]) -> None:
    """The command line's tracking wins, but for the sweep's name; a record without any gets the defaults."""
    swept = write(tmp_path / "swept", project="theirs")
    plain = write(tmp_path / "plain", name="none", group=None)
    given = {"name": "wandb", "project": "mine", "entity": None, "mode": "offline", "group": None, "tags": []}
    assert sync.run(asked([str(swept), str(plain)])) == 0
    assert sync.run(asked(str(swept), **given)) == 0
    assert sync.run(asked(str(swept), **given | {"group": "ours"})) == 0
    assert uploaded == [
        ("swept", "theirs", "demo-tiny"),
        ("plain", "gradwire", None),
        ("swept", "mine", "demo-tiny"),
        ("swept", "mine", "ours"),
    ]


def test_sync_leaves_a_run_alone_that_goes_on(
    tmp_path: Path, uploaded: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lock = DirectoryLock(write(tmp_path / "run"))
    try:
        assert sync.run(asked(str(tmp_path))) == 1
    finally:
        lock.release()
    assert not uploaded
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "in use by another run" in line
