"""The contents of a run directory decide how the next attempt begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from saved import save
from tiny import TINY_MODEL

from gradwire.harness.checkpoint.folder import checkpoints, remove_all
from gradwire.harness.checkpoint.resume import check_directory, is_finished, open_run
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.row_file import read_rows
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.writer import RunWriter
from gradwire.harness.trainer.settings import RunConfig


@pytest.fixture(scope="module")
def settings() -> RunConfig:
    return validate(compose([*TINY_MODEL, "cluster=virtual", "cluster.workers=2"]))


DAMAGES: dict[str, Callable[[bytes], list[bytes]]] = {
    "undecodable": lambda line: [b"\xff" + line[1:]],
    "one too many": lambda line: [b'{"step": 2}\n', line],
    "lost": lambda line: [],
    "emptied": lambda line: [b"\n"],
    "cut": lambda line: [line[:-4] + b"\n"],
    "a digit": lambda line: [line.replace(b"2", b"3").replace(b"4", b"5")],
    "a number": lambda line: [b"5\n"],
    "an object": lambda line: [b"{}\n"],
    "a list": lambda line: [b"[1]\n"],
}


def recorded(directory: Path, name: str) -> list[int]:
    return [row["step"] for row in read_rows(directory / name)]


@pytest.fixture
def unfinished(settings: RunConfig, tmp_path: Path) -> Path:
    """Checkpoints after 2 and 4 steps, rows of 6, an evaluation every 2, the last row cut off."""
    open_run(settings, tmp_path)
    writer = RunWriter(tmp_path)
    for done in (2, 4, 6):
        writer.add_steps({"step": step, "loss": 1.5} for step in range(done - 2, done))
        writer.add_evaluation({"step": done})
        rows = writer.flush()
        if done < 6:
            save(tmp_path, done, run_id=run_id(settings), rows=rows)
    with (tmp_path / "steps.jsonl").open("a") as handle:
        handle.write('{"step": 6, "lo')
    return tmp_path


def test_an_unfinished_run_goes_on_and_later_rows_are_cut(settings: RunConfig, unfinished: Path) -> None:
    opened = open_run(settings, unfinished)
    assert opened.checkpoint == unfinished / "checkpoints" / "step-00000004"
    assert opened.notes == (f"resuming after step 4, from {opened.checkpoint}",)
    assert recorded(unfinished, "steps.jsonl") == [0, 1, 2, 3]
    assert recorded(unfinished, "evals.jsonl") == [2, 4]
    attempts = json.loads((unfinished / "run.json").read_text())["attempts"]
    assert [attempt["from_step"] for attempt in attempts] == [0, 4]


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(settings: RunConfig, unfinished: Path) -> None:
    damaged = unfinished / "checkpoints" / "step-00000004"
    (damaged / "model.safetensors").write_bytes(b"half")
    opened = open_run(settings, unfinished)
    assert opened.notes[0].startswith(f"{damaged}: model.safetensors is not a whole safetensors file")
    assert opened.notes[0].endswith(": set aside as damaged-step-00000004")
    assert opened.checkpoint == unfinished / "checkpoints" / "step-00000002"
    assert recorded(unfinished, "steps.jsonl") == [0, 1]
    assert not damaged.exists()


def test_without_a_usable_checkpoint_the_run_starts_over(settings: RunConfig, unfinished: Path) -> None:
    for path in checkpoints(unfinished):
        (path / "DONE").unlink()
    opened = open_run(settings, unfinished)
    assert opened.checkpoint is None
    assert opened.notes[-1] == "no usable checkpoint is left: starting over"
    assert recorded(unfinished, "steps.jsonl") == []


def test_a_checkpoint_without_its_rows_is_not_used(settings: RunConfig, unfinished: Path) -> None:
    """The summary would count fewer steps than were made."""
    rows = (unfinished / "steps.jsonl").read_text().splitlines(keepends=True)
    (unfinished / "steps.jsonl").write_text("".join(rows[:3]))
    opened = open_run(settings, unfinished)
    assert "steps.jsonl, which lacks rows: set aside as damaged-step-00000004" in opened.notes[0]
    assert opened.checkpoint == unfinished / "checkpoints" / "step-00000002"


@pytest.mark.parametrize("name", ["steps.jsonl", "evals.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_costs_those_after_it(
    damage: str, name: str, settings: RunConfig, unfinished: Path
) -> None:
    """Rows 2 and 3 of the steps, and the second evaluation, are those after the checkpoint of step 2."""
    lines = (unfinished / name).read_bytes().splitlines(keepends=True)
    index = 2 if name == "steps.jsonl" else 1
    lines[index : index + 1] = DAMAGES[damage](lines[index])
    (unfinished / name).write_bytes(b"".join(lines))
    opened = open_run(settings, unfinished)
    assert f"counts on {unfinished / name}, which" in opened.notes[0]
    assert opened.checkpoint == unfinished / "checkpoints" / "step-00000002"
    assert recorded(unfinished, "steps.jsonl") == [0, 1]
    assert recorded(unfinished, "evals.jsonl") == [2]


def test_lost_evaluations_are_noticed(settings: RunConfig, unfinished: Path) -> None:
    """The time to accuracy would be wrong."""
    evaluations = unfinished / "evals.jsonl"
    evaluations.rename(unfinished / "elsewhere")
    with pytest.raises(ValueError, match=r"evals\.jsonl: is not there; restore its contents, or start over"):
        open_run(settings, unfinished)
    (unfinished / "elsewhere").rename(evaluations)
    assert open_run(settings, unfinished).checkpoint == unfinished / "checkpoints" / "step-00000004"


def test_a_folder_in_the_place_of_rows_costs_no_checkpoint(settings: RunConfig, unfinished: Path) -> None:
    (unfinished / "evals.jsonl").unlink()
    (unfinished / "evals.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"evals\.jsonl: is a folder; move it away$"):
        open_run(settings, unfinished)
    assert len(checkpoints(unfinished)) == 2


def test_another_runs_checkpoint_is_not_taken_and_stays(settings: RunConfig, unfinished: Path) -> None:
    path = save(unfinished, 6, run_id="another")
    opened = open_run(settings, unfinished)
    whose = f"{path} is the checkpoint after step 6 of run another, and this is run {run_id(settings)}"
    assert opened.notes[0] == f"{whose}: set aside as foreign-step-00000006"
    assert opened.checkpoint == unfinished / "checkpoints" / "step-00000004"
    remove_all(unfinished)
    assert [left.name for left in (unfinished / "checkpoints").iterdir()] == ["foreign-step-00000006"]


def test_a_checkpoint_under_another_steps_name_is_not_taken(settings: RunConfig, unfinished: Path) -> None:
    newest = unfinished / "checkpoints" / "step-00000004"
    newest.rename(newest.with_name("step-00000006"))
    opened = open_run(settings, unfinished)
    assert "is the checkpoint after step 4 of run" in opened.notes[0]
    assert opened.checkpoint == unfinished / "checkpoints" / "step-00000002"


@pytest.mark.parametrize("resume", ["auto", "never"])
@pytest.mark.parametrize("name", ["config.yaml", "checkpoints", "checkpoint"])
def test_what_is_no_run_is_not_overwritten(
    name: str, resume: str, settings: RunConfig, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=rf"holds {name}, but no run\.json, .* hydra\.run\.dir="):
        open_run(replace(settings, resume=resume), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_halves_of_files_go(settings: RunConfig, unfinished: Path) -> None:
    (unfinished / ".summary.json.123").touch()
    (unfinished / ".checkpoint-x1").mkdir()
    (unfinished / ".mine").touch()
    open_run(settings, unfinished)
    assert [path.name for path in unfinished.glob(".*")] == [".mine"]


def test_never_starts_over(settings: RunConfig, unfinished: Path) -> None:
    opened = open_run(replace(settings, resume="never"), unfinished)
    assert (opened.checkpoint, opened.notes) == (None, ())
    assert recorded(unfinished, "steps.jsonl") == []
    assert not checkpoints(unfinished)


def test_other_code_is_refused_unless_forced(
    settings: RunConfig, unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.harness.checkpoint.resume.this_code", lambda: "other")
    with pytest.raises(ValueError, match=r"begun by other code .*; resume=force .*, resume=never") as refusal:
        open_run(settings, unfinished)
    assert "\n" not in str(refusal.value)
    assert recorded(unfinished, "evals.jsonl") == [2, 4, 6], "nothing is changed"
    assert open_run(replace(settings, resume="force"), unfinished).checkpoint is not None


def test_other_code_may_start_a_run_that_has_no_checkpoint(
    settings: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_run(settings, tmp_path)
    monkeypatch.setattr("gradwire.harness.checkpoint.resume.this_code", lambda: "other")
    assert open_run(settings, tmp_path).checkpoint is None


@pytest.mark.parametrize("resume", ["auto", "force"])
def test_other_settings_are_refused(resume: str, settings: RunConfig, unfinished: Path) -> None:
    """A finished run's directory too: its summary would be taken for this run's."""
    other = replace(settings, seed=7, resume=resume)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"other settings .* hydra\.run\.dir=, or resume=never"):
            check_directory(other, unfinished)
        mark_done(unfinished)
    check_directory(replace(other, resume="never"), unfinished)


def test_the_settings_that_differ_are_named(settings: RunConfig, unfinished: Path) -> None:
    train = replace(settings.train, lr=0.5, steps=77, weight_decay=0.3, momentum=0.1)
    with pytest.raises(ValueError, match=r"\(seed=0 there, 7 here\); choose another"):
        check_directory(replace(settings, seed=7), unfinished)
    with pytest.raises(ValueError, match=r"train\.steps=\d+ there, 77 here; .*; and 1 more\); choose"):
        check_directory(replace(settings, train=train), unfinished)
    other = replace(settings, codec={**settings.codec, "name": "mxfp4"})
    with pytest.raises(ValueError, match=rf"\(codec={settings.codec['name']} there, mxfp4 here\); choose"):
        check_directory(other, unfinished)
    (unfinished / "config.yaml").write_text("- no mapping")
    with pytest.raises(ValueError, match=r"other settings \([0-9a-f]{12}, these are [0-9a-f]{12}\); choose"):
        check_directory(replace(settings, seed=7), unfinished)


def test_settings_without_effect_are_no_other_settings(settings: RunConfig, unfinished: Path) -> None:
    config = replace(
        settings,
        train=replace(settings.train, checkpoint_every=1, log_every=2),
        cluster=replace(settings.cluster, timeout_s=3.0),
    )
    assert open_run(config, unfinished).checkpoint is not None


def test_a_finished_run_is_not_run_again_unless_replace(settings: RunConfig, unfinished: Path) -> None:
    assert not is_finished(settings, unfinished)
    mark_done(unfinished)
    assert is_finished(settings, unfinished)
    assert not is_finished(replace(settings, resume="never"), unfinished)


def test_an_unreadable_identity_is_one_line(settings: RunConfig, unfinished: Path) -> None:
    (unfinished / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: is not JSON .*; resume=never starts over"):
        check_directory(settings, unfinished)
