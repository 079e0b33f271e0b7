"""Folders from elsewhere: links that stay inside are followed, others and endless trees are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradwire.harness.data.image_files import FileImages
from gradwire.harness.data.text import files_below
from gradwire.harness.files import hostile
from gradwire.harness.files.hostile import files_in
from gradwire.harness.files.reading import UnusableFileError, folders_in
from gradwire.harness.record.identity import data_fingerprint
from gradwire.harness.studies.score.benchmarks import BENCHMARKS

REMEDY = "do something"


def names(folder: Path, **options: bool) -> list[str]:
    found = files_in(folder, remedy=REMEDY, **options)  # type: ignore[arg-type]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def test_links_inside_are_followed_and_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a" / ".hidden").mkdir(parents=True)
    for name in ("a/one.txt", "a/.hidden/two.txt", ".three.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link.txt").symlink_to("a/one.txt")
    (tmp_path / "up").symlink_to(".")  # a circle of folders
    (tmp_path / "nowhere").symlink_to("not there")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert names(tmp_path) == [".three.txt", "a/.hidden/two.txt", "a/one.txt", "link.txt"]
    assert names(tmp_path, hidden=False) == ["a/one.txt", "link.txt"]
    assert list(folders_in(tmp_path)) == [tmp_path, tmp_path / "a"]


@pytest.mark.parametrize("target", ["/proc/self/environ", "/etc/passwd", "../outside.txt"])
def test_a_link_out_of_the_folder_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("outside")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "text.txt").symlink_to(target)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "python").symlink_to(target)  # of no format, so not read as data
    for read in (names, files_below, data_fingerprint):
        with pytest.raises(UnusableFileError, match="(text.txt|python): is a link out of .*folder, and none"):
            read(folder)
    (folder / "text.txt").unlink()
    (folder / "text.txt").write_text("own")
    assert data_fingerprint(folder) and files_below(folder) == [folder / "text.txt"]


def test_links_on_the_way_to_a_file_and_of_archives_are_refused(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    benchmark = BENCHMARKS["hellaswag"]
    for names_of in benchmark.splits["hellaswag"][-1].files:
        (outside / names_of[0]).write_text("{}")
    (folder / "hellaswag").symlink_to(outside)
    with pytest.raises(UnusableFileError, match="is a link out of .*folder, and none"):
        benchmark.files(folder)
    (outside / "train.zip").touch()
    (folder / "train.zip").symlink_to(outside / "train.zip")
    with pytest.raises(ValueError, match=r"^dataset.path=.*train.zip: is a link out of .*folder, and none"):
        FileImages(folder, "train", "test").fingerprint()


def test_a_snapshot_in_the_hugging_face_cache_is_made_of_links(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--a--b" / "blobs").mkdir()
    (tmp_path / "models--a--b" / "blobs" / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    assert names(snapshot) == ["config.json"]
    (snapshot / "out.json").symlink_to("/etc/passwd")
    with pytest.raises(UnusableFileError, match="out.json: is a link out of"):
        names(snapshot)


def test_trees_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path
    for _ in range(hostile.DEPTH + 1):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(UnusableFileError, match=f"{hostile.DEPTH} folders inside each other; do something"):
        names(tmp_path)
    assert len(list(folders_in(tmp_path))) == hostile.DEPTH + 1
    monkeypatch.setattr(hostile, "MOST_FILES", 2)
    for name in "abc":
        (tmp_path / name).touch()
    with pytest.raises(UnusableFileError, match="has more than 2 files"):
        names(tmp_path)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(UnusableFileError, match="a: is a link that cannot be followed"):
        names(tmp_path)
