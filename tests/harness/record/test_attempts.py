"""`run.json`: the attempts of a run, and why each one ended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.record.attempts import (
    MOST_STARTED_OVER,
    NO_REASON,
    Attempts,
    RankEnd,
    note_end,
)
from gradwire.harness.record.directory import mark_failed
from gradwire.harness.record.runs import load_run, not_finished
from gradwire.harness.record.seal import check_done, mark_done
from gradwire.harness.record.writer import begin_record, continue_record
from gradwire.harness.runtime.program import remember_command
from gradwire.harness.trainer.settings import RunConfig

KILLED = "rank 1 was killed by SIGKILL (out of memory?)"


@pytest.fixture
def settings() -> RunConfig:
    return validate(compose([*TINY_MODEL, "cluster=virtual"]))


def told(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return found


def ends(directory: Path) -> list[str]:
    found = Attempts.read(directory)
    assert found is not None
    return found.earlier_ends


def test_every_attempt_says_why_it_ended(settings: RunConfig, tmp_path: Path) -> None:
    """Its launcher says why; or the next one does, from what is left of it."""
    begin_record(tmp_path, settings)
    mark_failed(tmp_path, KILLED)
    note_end(tmp_path, f"{KILLED}\n", 12, [RankEnd(1, signal="SIGKILL")])
    assert told(tmp_path)["attempts"][0]["ended"] == {
        "reason": KILLED,
        "after_step": 12,
        "ranks": [{"rank": 1, "signal": "SIGKILL", "exit_code": None}],
    }
    continue_record(tmp_path, settings, 10, {})
    mark_failed(tmp_path, "rank 0 failed: OSError: its own words")  # a rank under torchrun
    continue_record(tmp_path, settings, 20, {})  # whose launcher is killed
    continue_record(tmp_path, settings, 20, {})
    assert ends(tmp_path) == [KILLED, "rank 0 failed: OSError: its own words", NO_REASON]
    *_, last = told(tmp_path)["attempts"]
    assert (last["from_step"], "ended" in last) == (20, False)


def test_a_run_that_starts_over_remembers_why(settings: RunConfig, tmp_path: Path) -> None:
    """The run was not continued: attempts of which nothing is left are listed apart."""
    begin_record(tmp_path, settings)
    note_end(tmp_path, KILLED, None, [])
    begin_record(tmp_path, settings)
    mark_failed(tmp_path, "interrupted")
    begin_record(tmp_path, settings)
    found = Attempts.read(tmp_path)
    assert found is not None
    assert (len(found.attempts), len(found.started_over), found.resumed_after) == (1, 2, [])
    assert found.earlier_ends == [KILLED, "interrupted"]
    begin_record(tmp_path, replace(settings, resume="never"))
    assert ends(tmp_path) == []


def test_a_signal_after_the_end_leaves_the_record_as_it_was_sealed(
    settings: RunConfig, tmp_path: Path
) -> None:
    begin_record(tmp_path, settings)
    continue_record(tmp_path, settings, 0, {})
    mark_done(tmp_path)
    note_end(tmp_path, "stopped by SIGTERM as it finished", 3, [RankEnd(1, signal="SIGTERM")])
    check_done(tmp_path)
    assert "ended" not in told(tmp_path)["attempts"][-1]


def test_of_many_attempts_that_start_over_the_newest_are_remembered(
    settings: RunConfig, tmp_path: Path
) -> None:
    found = Attempts("run")
    for number in range(MOST_STARTED_OVER + 5):
        found = Attempts.started_anew("run", found)
        found.attempts = [{"from_step": 0, "code_hash": str(number), "torch": "2"}]
    assert [attempt["code_hash"] for attempt in found.started_over] == [
        str(number) for number in range(4, MOST_STARTED_OVER + 4)
    ]


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ("killed", "ended is 'killed', not an object"),
        ({}, "lacks ended.reason"),
        ({"reason": 3}, "ended.reason is 3, not text"),
        ({"reason": "", "ranks": [{"rank": "1"}]}, "rank is '1', not a whole number"),
    ],
)
def test_other_things_are_no_end(ended: object, said: str, settings: RunConfig, tmp_path: Path) -> None:
    begin_record(tmp_path, settings)
    damaged = told(tmp_path)
    damaged["attempts"][0]["ended"] = ended
    (tmp_path / "run.json").write_text(json.dumps(damaged))
    with pytest.raises(UnusableFileError, match=said):
        Attempts.read(tmp_path)
    note_end(tmp_path, KILLED, None, [])  # no second failure
    assert told(tmp_path) == damaged


def test_the_command_is_recorded_and_shown_for_an_unfinished_run(
    settings: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.harness.runtime.program._given", [])
    begin_record(tmp_path, settings)
    assert "command" not in told(tmp_path)["attempts"][0]
    assert not_finished(load_run(tmp_path)).endswith("run the same command again to finish it")
    remember_command(["size=tiny", "model.name=a b"])
    continue_record(tmp_path, settings, 0, {})
    said = not_finished(load_run(tmp_path))
    assert said.startswith("is unfinished (last recorded step: none); run the same command again to finish")
    assert said.endswith(" size=tiny 'model.name=a b'")
    mark_failed(tmp_path, "diverged after step 3")
    assert not_finished(load_run(tmp_path)).endswith(
        "(diverged after step 3); choose a run that has finished"
    )
