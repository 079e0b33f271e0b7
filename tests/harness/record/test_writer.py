"""A run's directory: whole files, one owner, and the reason of a failure."""

from __future__ import annotations

import gzip
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
from gradwire.harness.record.writer import RunWriter, begin_record, continue_record, copy_of, mend_rows
from gradwire.harness.trainer.settings import RunConfig


@pytest.fixture
def settings() -> RunConfig:
    return validate(compose([*TINY_MODEL, "cluster=virtual"]))


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
    assert mend_rows(tmp_path, rows, tmp_path / "no checkpoint") == []
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
def test_rows_that_change_while_a_run_goes_on_are_written_again(
    damage: str, settings: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written again at the next checkpoint or, if their length is unchanged, at the end."""
    begin_record(tmp_path, settings)
    RunWriter(tmp_path).add_evaluation({"step": 2, "perplexity": 8.125})
    writer, path = RunWriter(tmp_path), tmp_path / "evals.jsonl"  # as after a resume
    text = path.read_text()
    changes = {"digit": text.replace("8.1", "9.1"), "shortened": text[:-2], "lengthened": text + text}
    path.write_text(changes.get(damage, ""))
    if damage == "lost":
        path.unlink()
    writer.add_evaluation({"step": 4, "perplexity": 7.5})
    rows = writer.flush()
    assert capsys.readouterr().out.count("\n") == (damage != "digit")
    writer.flush()
    assert writer.evaluations() == [{"step": 2, "perplexity": 8.125}, {"step": 4, "perplexity": 7.5}]
    said = capsys.readouterr().out
    problem = "holds other rows than were written: changed while the run went on, written again"
    assert said == (f"note: {path} {problem}\n" if damage == "digit" else "")
    assert path.read_text() == text + '{"step": 4, "perplexity": 7.5}\n'
    assert writer.flush() == rows


def test_copies_of_rows_hold_what_was_written(settings: RunConfig, tmp_path: Path) -> None:
    """Copies are right however often they are made and in whatever parts the rows came."""
    begin_record(tmp_path, settings)
    writer = RunWriter(tmp_path)
    for step in range(0, 400, 2):
        writer.add_steps({"step": number, "loss": 1 / (number + 3)} for number in (step, step + 1))
        if step % 100 == 0:
            copies = writer.copies()
            assert gzip.decompress(copies["steps.jsonl.gz"]) == (tmp_path / "steps.jsonl").read_bytes()
            assert gzip.decompress(copies["evals.jsonl.gz"]) == b""
    assert gzip.decompress(RunWriter(tmp_path).copies()["steps.jsonl.gz"]).count(b"\n") == 400


@pytest.mark.parametrize("copied", ["", "other rows", "fewer rows", "more rows", "no gzip", "half"])
def test_rows_are_restored_from_what_was_written_alone(
    copied: str, settings: RunConfig, tmp_path: Path
) -> None:
    begin_record(tmp_path, settings)
    writer = RunWriter(tmp_path)
    writer.add_steps({"step": step} for step in range(300))
    rows, path, whole = writer.flush(), tmp_path / "steps.jsonl", (tmp_path / "steps.jsonl").read_bytes()
    path.write_bytes(damaged := whole.replace(b"7", b"8"))
    contents = {"": whole, "other rows": damaged, "fewer rows": whole[:-13], "more rows": whole * 2}
    copy = gzip.compress(contents.get(copied, whole))
    copy = {"no gzip": whole, "half": copy[: len(copy) // 2]}.get(copied, copy)
    (tmp_path / copy_of("steps.jsonl")).write_bytes(copy)
    if copied:
        with pytest.raises(UnusableFileError, match=r"steps\.jsonl\.gz: (holds|expands|is not gzip)"):
            mend_rows(tmp_path, rows, tmp_path)
        assert path.read_bytes() == damaged
    else:
        (note,) = mend_rows(tmp_path, rows, tmp_path)
        assert note == (
            f"{path} holds other rows than were written: restored from the copy in {tmp_path.name}"
        )
        assert path.read_bytes() == whole
    left = {"config.yaml", "run.json", "steps.jsonl", "steps.jsonl.gz"}
    assert {entry.name for entry in tmp_path.iterdir()} == left


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
