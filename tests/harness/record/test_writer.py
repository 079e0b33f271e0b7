"""A run's directory: whole files, one owner, and a reason when it failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gradwire.harness.record.provenance import code_hash, git_state, machine, versions
from gradwire.harness.record.writer import (
    DirectoryLock,
    RunWriter,
    is_done,
    make_directory,
    mark_failed,
    write_atomically,
)


def test_writing_replaces_whole_files_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")  # cannot be encoded: the write itself fails
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_new_attempt_begins_with_a_clean_record(tmp_path: Path) -> None:
    config = OmegaConf.create({"seed": 1})
    first = RunWriter(tmp_path, config)
    first.add_steps([{"step": 0, "loss": float("inf")}])
    first.add_evaluation({"step": 1})
    mark_failed(tmp_path, "two\nlines")
    assert (tmp_path / "FAILED").read_text() == "two lines\n"
    second = RunWriter(tmp_path, config)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.yaml"]
    second.add_steps([{"step": 0}, {"step": 1}])
    assert (tmp_path / "steps.jsonl").read_text() == '{"step": 0}\n{"step": 1}\n'


def test_a_finished_run_cannot_be_marked_failed(tmp_path: Path) -> None:
    (tmp_path / "DONE").touch()
    mark_failed(tmp_path, "late")
    assert is_done(tmp_path)
    assert not (tmp_path / "FAILED").exists()


def test_one_run_per_directory(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "run")
    with pytest.raises(ValueError, match=r"in use by another run.*hydra\.run\.dir="):
        DirectoryLock(tmp_path / "run")
    lock.release()
    DirectoryLock(tmp_path / "run").release()


def test_provenance_names_what_ran() -> None:
    assert len(code_hash()) == 12
    commit, dirty = git_state()
    assert (commit is None) == (dirty is None)
    assert {"python", "torch", "transformers", "accelerate"} <= versions().keys()
    assert machine()["intra_op_threads"] == 1


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"Not a directory; choose a folder.*hydra\.run\.dir=") as refusal:
        make_directory(tmp_path / "file" / "run")
    assert "\n" not in str(refusal.value)
    make_directory(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
