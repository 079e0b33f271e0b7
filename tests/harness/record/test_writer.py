"""A run's directory: whole files, one owner, and the reason of a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny import TINY_MODEL

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import DirectoryLock, is_done, make_directory, mark_failed
from gradwire.harness.record.provenance import code_hash, git_state, hash_of_sources, machine, versions
from gradwire.harness.record.row_file import RowFile, append_rows, read_rows
from gradwire.harness.record.seal import check_done, mark_done
from gradwire.harness.record.writer import RunWriter, begin_record, check_rows, continue_record
from gradwire.harness.trainer.settings import RunConfig


@pytest.fixture
def settings() -> RunConfig:
    return validate(compose([*TINY_MODEL, "cluster=virtual"]))


def test_writing_replaces_whole_files_and_leaves_no_others(tmp_path: Path) -> None:
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


def test_a_new_record_replaces_the_old_one(settings: RunConfig, tmp_path: Path) -> None:
    begin_record(tmp_path, settings)
    writer = RunWriter(tmp_path)
    writer.add_steps([{"step": 0, "loss": float("inf")}])
    writer.add_evaluation({"step": 1})
    mark_failed(tmp_path, "two\nlines")
    assert (tmp_path / "FAILED").read_text() == "two lines\n"
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "metric-print.png").write_bytes(b"of the old one")
    begin_record(tmp_path, settings)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.yaml", "run.json"]
    writer.add_steps([{"step": 0}, {"step": 1}])
    assert (tmp_path / "steps.jsonl").read_text() == '{"step": 0}\n{"step": 1}\n'


def test_an_old_end_is_never_taken_for_the_new_run(
    settings: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the replacement of a finished run is cut off, the new run does not count as finished."""
    begin_record(tmp_path, settings)
    mark_done(tmp_path)

    def cut_off(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwire.harness.record.attempts.write_atomically", cut_off)
    with pytest.raises(KeyboardInterrupt):
        begin_record(tmp_path, settings)
    assert not is_done(tmp_path)


def test_a_continued_record_keeps_what_the_checkpoint_knows(settings: RunConfig, tmp_path: Path) -> None:
    """Steps before it, the evaluation after its last step; numbers come back as they were."""
    begin_record(tmp_path, settings)
    writer = RunWriter(tmp_path)
    writer.add_steps({"step": step, "loss": 1 / (step + 3)} for step in range(3))
    writer.add_evaluation({"step": 3, "perplexity": float("inf")})
    rows = writer.flush()
    writer.add_steps({"step": step, "loss": 1 / (step + 3)} for step in range(3, 6))
    writer.add_evaluation({"step": 6, "perplexity": 1.5})
    mark_failed(tmp_path, "interrupted")
    check_rows(tmp_path, rows)
    continue_record(tmp_path, settings, 3, rows)
    writer = RunWriter(tmp_path)
    assert writer.flush() == rows
    assert writer.steps() == [{"step": step, "loss": 1 / (step + 3)} for step in range(3)]
    assert writer.evaluations() == [{"step": 3, "perplexity": float("inf")}]
    assert not (tmp_path / "FAILED").exists()


def test_a_line_cut_off_by_a_crash_is_dropped_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    append_rows(path, [{"step": 0}, {"step": 1}])
    with path.open("a") as handle:
        handle.write('{"step": 2, "lo')
    assert read_rows(path) == [{"step": 0}, {"step": 1}]
    path.write_text('{"step"\n{"step": 1}\n')
    with pytest.raises(ValueError, match=r"steps\.jsonl: line 1 is not JSON"):
        read_rows(path)


@pytest.mark.parametrize("damage", ["digit", "emptied", "shortened", "lengthened", "lost"])
def test_rows_changed_during_a_run_are_detected(damage: str, settings: RunConfig, tmp_path: Path) -> None:
    """At the next checkpoint or, if their length is unchanged, at the end."""
    begin_record(tmp_path, settings)
    RunWriter(tmp_path).add_evaluation({"step": 2, "perplexity": 8.125})
    writer, path = RunWriter(tmp_path), tmp_path / "evals.jsonl"  # as after a resume
    text = path.read_text()
    changes = {"digit": text.replace("8.1", "9.1"), "shortened": text[:-2], "lengthened": text + text}
    path.write_text(changes.get(damage, ""))
    if damage == "lost":
        path.unlink()
    writer.add_evaluation({"step": 4, "perplexity": 7.5})
    if damage != "digit":
        with pytest.raises(UnusableFileError, match=r"evals\.jsonl: has \d+ bytes and not the \d+ written"):
            writer.flush()
    with pytest.raises(UnusableFileError, match=r"evals\.jsonl: .*; restore its contents, or start over"):
        writer.evaluations()


def test_a_file_of_rows_is_bounded(tmp_path: Path) -> None:
    """A sparse one, which takes no place on the disk, would be read for hours."""
    path = tmp_path / "steps.jsonl"
    append_rows(path, [{"step": 0}])
    os.truncate(path, 2**31)
    with pytest.raises(UnusableFileError, match=r"steps\.jsonl: line 2 is longer than 1 MiB"):
        read_rows(path)
    os.truncate(path, 2**42)
    for read in (read_rows, RowFile):
        with pytest.raises(UnusableFileError, match=r"steps\.jsonl: is longer than 2 GiB, the most that is"):
            read(path)


def test_a_record_that_is_done_is_sealed(settings: RunConfig, tmp_path: Path) -> None:
    begin_record(tmp_path, settings)
    RunWriter(tmp_path).add_steps([{"step": 0}])
    mark_done(tmp_path)
    (tmp_path / "notes.txt").write_text("of the user")
    check_done(tmp_path)
    sealed = {name: (tmp_path / name).read_bytes() for name in ("config.yaml", "run.json", "steps.jsonl")}
    for name, content in sealed.items():
        for damaged in (b"", content[:-1], content.replace(b"0", b"1", 1), content + b"\n"):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(UnusableFileError, match=rf"{name}: differs from its digest in DONE; .*never"):
                check_done(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(UnusableFileError, match=f"{name}: is missing, and DONE counts on it"):
            check_done(tmp_path)
        (tmp_path / name).write_bytes(content)
    check_done(tmp_path)
    (tmp_path / "DONE").write_text("{")
    with pytest.raises(UnusableFileError, match="DONE: is not JSON"):
        check_done(tmp_path)
    (tmp_path / "DONE").write_text("")
    with pytest.raises(UnusableFileError, match=r"DONE: is empty: the digests .* are lost; .*resume=never"):
        check_done(tmp_path)


def test_a_finished_run_cannot_be_marked_failed(tmp_path: Path) -> None:
    mark_done(tmp_path)
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


def test_all_sources_count_wherever_they_lie(tmp_path: Path) -> None:
    for root in (tmp_path / "one", tmp_path / "other"):
        for name in ("codecs/a.py", "harness/b.py", "csrc/cpu/c.cpp"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(name)
    first = hash_of_sources(tmp_path / "one")
    assert hash_of_sources(tmp_path / "other") == first
    (tmp_path / "one" / "csrc" / "notes.md").touch()
    assert hash_of_sources(tmp_path / "one") == first
    changed = {first}
    for name in ("codecs/a.py", "csrc/cpu/c.cpp", "csrc/cpu/new.h"):
        (tmp_path / "one" / name).write_text("changed")
        changed.add(hash_of_sources(tmp_path / "one"))
    assert len(changed) == 4


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"Not a directory; choose a folder.*hydra\.run\.dir=") as refusal:
        make_directory(tmp_path / "file" / "run")
    assert "\n" not in str(refusal.value)
    make_directory(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
