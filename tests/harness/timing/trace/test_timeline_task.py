"""`task=timeline`: files in the run's directory, and refusals in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chrome_checks import check_chrome
from traced_runs import SIMULATED, virtual_run

from gradwire.harness.config.compose import compose
from gradwire.harness.config.tasks import TimelineTask
from gradwire.harness.config.validate import validate_task
from gradwire.harness.record.runs import load_run
from gradwire.harness.report.bandwidth_plot import chosen_steps
from gradwire.harness.tasks import timeline


def asked(*overrides: str) -> TimelineTask:
    config = validate_task(compose(["task=timeline", *overrides]))
    assert isinstance(config, TimelineTask)
    return config


def files_of(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / timeline.FOLDER).glob("*"))


@pytest.fixture
def copied(simulated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(simulated, tmp_path / "runs" / "one"))


def test_files_are_written_and_named(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps 0 and 3 of the five were measured."""
    assert timeline.run(asked(f"run={copied}", "timeline.steps=2")) == 0
    assert files_of(copied) == ["step1.json", "step2.json"]
    *paths, line = capsys.readouterr().out.splitlines()
    assert paths[:2] == [str(copied / "timeline" / name) for name in files_of(copied)]
    assert [Path(path).name for path in paths[2:]] == [
        f"bandwidth-{form}" for form in ("print.svg", "print.png", "dark.png")
    ]
    assert all(Path(path).stat().st_size > 1000 for path in paths)
    assert line.startswith("runs/one: steps 1 to 2 of 4 ranks, ")
    assert "ms each on the simulated clock" in line
    for name in files_of(copied):
        check_chrome((copied / "timeline" / name).read_text())


def test_without_its_engine_the_clock_of_a_virtual_run_is_refused(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.harness.timing.simulate.engine.library", lambda: None)
    assert timeline.run(asked(f"run={copied}")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"error: {copied} needs the simulated clock, whose engine libgradwire_simulator.so"
    )
    assert files_of(copied) == []


def test_a_step_is_chosen(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline.run(asked(f"run={copied}", "timeline.step=4")) == 0
    assert files_of(copied) == ["step4.json"], "the last one has none after it"
    assert "one: step 4 of 4 ranks" in capsys.readouterr().out


def test_a_folder_stands_for_its_runs(copied: Path, paced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(paced, copied.parent / "two"))
    shutil.rmtree(Path(shutil.copytree(paced, copied.parent / "untraced")) / "trace")
    assert timeline.run(asked(f"run={copied.parent}", "timeline.steps=1")) == 1
    assert files_of(copied) == files_of(other) == ["step2.json"]
    output = capsys.readouterr()
    assert "wall clock" in output.out
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    assert "untraced/trace: holds no steps; train with measure.trace=true" in line


def test_an_unknown_step_is_refused_with_the_range(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline.run(asked(f"run={copied}", "timeline.step=17")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: timeline.step=17: {copied} has the steps 0 to 4; choose one of them")
    assert files_of(copied) == []


@pytest.mark.parametrize(
    "given", ["timeline.step=-1", "timeline.step=x", "timeline.steps=0", "timeline.steps=null"]
)
def test_what_is_no_number_is_refused(given: str, copied: Path) -> None:
    with pytest.raises(ValueError, match=f"{given}: choose a whole number from "):
        timeline.run(asked(f"run={copied}", given))


def test_a_run_that_did_not_end_has_timelines_too(copied: Path) -> None:
    (copied / "DONE").unlink()
    (copied / "FAILED").write_text("killed\n")
    assert timeline.run(asked(f"run={copied}")) == 0
    assert len(files_of(copied)) == 3


def test_steps_that_were_measured_are_left_out_where_that_is_possible(tmp_path: Path) -> None:
    run = load_run(virtual_run(tmp_path / "run", 2, *SIMULATED, "measure.vnmse_every=2"))
    assert chosen_steps(run, 1) == [3]
    assert chosen_steps(run, 2) == [3, 4], "it begins with one that was not"
    assert chosen_steps(run, 9) == [0, 1, 2, 3, 4]
