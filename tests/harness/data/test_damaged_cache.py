"""Damaged prepared data is named in one line and made again, or refused; it is never used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damages import DAMAGES, one_line

from gradwire.harness.data import cache as kept
from gradwire.harness.data.cache import cached_folder
from gradwire.harness.data.token_data import read_data


def fill(folder: Path) -> None:
    (folder / "tokenizer").mkdir()
    np.save(folder / "train.npy", np.arange(40, dtype=np.int32).reshape(4, 10))
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    (folder / "description.json").write_text('{"sha256": "abc"}')


def fill_otherwise(folder: Path) -> None:
    fill(folder)
    np.save(folder / "train.npy", np.arange(1, 41, dtype=np.int32).reshape(4, 10))
    (folder / "tokenizer" / "tokenizer.json").write_text("[]")
    (folder / "description.json").write_text('{"sha256": "abd"}')


def shuffle(folder: Path) -> None:
    np.save(folder / "train.npy", np.load(folder / "train.npy")[::-1])


def truncate(folder: Path) -> None:
    os.truncate(folder / "train.npy", 140)


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / "train.npy").read_bytes())
    content[-1] ^= 1
    (folder / "train.npy").write_bytes(content)


def swap_with_another_key(folder: Path) -> None:
    cached_folder(folder.with_name("other"), fill)
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("other"), folder)


def link_out(folder: Path) -> None:
    shutil.move(folder / "train.npy", folder.parent / "elsewhere.npy")
    (folder / "train.npy").symlink_to(folder.parent / "elsewhere.npy")


def replace_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


IN_FOLDERS: dict[Callable[[Path], object], str] = {
    shuffle: "train.npy differs from its digest",
    truncate: "train.npy has another length, 140 bytes",
    flip_a_bit: "train.npy differs from its digest",
    (lambda folder: (folder / "train.npy").write_bytes(b"")): "train.npy has another length, 0 bytes",
    (lambda folder: (folder / "train.npy").unlink()): "train.npy is missing",
    (
        lambda folder: (folder / "description.json").write_text("{")
    ): "description.json has another length, 1 bytes",
    (lambda folder: (folder / "tokenizer" / "more.json").touch()): "tokenizer/more.json is not of it",
    (lambda folder: (folder / kept.FILE).write_text("[" * 100_000)): "digests.json has more than 32",
    (lambda folder: (folder / kept.FILE).write_text("[1]")): "digests.json is a list",
    (lambda folder: (folder / kept.FILE).write_text('{"name": "key", "blake2b": 5}')): "has no digests",
    (lambda folder: (folder / kept.FILE).write_bytes(b"\xff")): "digests.json is not UTF-8",
    (lambda folder: (folder / kept.FILE).unlink()): "digests.json is not there",
    swap_with_another_key: "it holds other",
    link_out: "train.npy is a link",
    replace_by_a_file: "",
}


@pytest.mark.parametrize("damage", list(IN_FOLDERS))
def test_it_is_named_and_made_again(
    damage: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cached_folder(tmp_path / "key", fill)
    damage(folder)
    assert cached_folder(tmp_path / "key", fill) == folder
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{folder} is damaged (") and line.endswith("): it is prepared again")
    assert IN_FOLDERS[damage] in line
    assert np.load(folder / "train.npy").tolist() == np.arange(40).reshape(4, 10).tolist()
    assert cached_folder(tmp_path / "key", fill) == folder
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["train.npy", "description.json", "tokenizer/tokenizer.json", kept.FILE])
def test_every_file_damaged_in_every_way_is_made_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the damage, and the data are then what they were before."""
    folder = cached_folder(tmp_path / "key", fill)
    whole = (folder / name).read_bytes()
    other = (cached_folder(tmp_path / "other", fill_otherwise) / name).read_bytes()
    for damage, change in DAMAGES.items():
        (folder / name).write_bytes(change(whole, other))
        cached_folder(folder, fill)
        (line,) = capsys.readouterr().out.splitlines()
        one_line(line)
        assert line.startswith(f"{folder} is damaged (") and line.endswith("): it is prepared again"), damage
        assert name in line or damage == "another's" or name == kept.FILE, line
        assert (folder / name).read_bytes() == whole, damage


def test_a_file_that_became_long_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sparse one, which takes no place on the disk, would be read for hours."""
    folder = cached_folder(tmp_path / "key", fill)
    os.truncate(folder / "train.npy", 2**42)
    cached_folder(folder, fill)
    assert f"train.npy has another length, {2**42} bytes" in capsys.readouterr().out


def test_where_it_cannot_be_made_again_it_is_refused(tmp_path: Path) -> None:
    def gone(folder: Path) -> None:
        raise ValueError("dataset.path=text.txt: no such file or folder; correct the path")

    flip_a_bit(cached_folder(tmp_path / "key", fill))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"is damaged \(train.npy .*\) and cannot be prepared again: "
        ) as no:
            cached_folder(tmp_path / "key", gone)
        assert "\n" not in str(no.value) and str(no.value).endswith("correct the path")


def test_who_is_told_that_it_was_verified_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cached_folder(tmp_path / "key", fill)
    monkeypatch.setattr(kept, "file_digest", None)
    assert cached_folder(tmp_path / "key", fill, verified=True) == folder


def test_a_file_of_many_parts_has_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read once as long as it does not change."""
    monkeypatch.setattr(kept, "PART_BYTES", 1000)
    path, parts = tmp_path / "file", list[int]()
    read = kept._part_digest
    monkeypatch.setattr(kept, "_part_digest", lambda file, part: (parts.append(part), read(file, part))[1])
    path.write_bytes(bytes(range(256)) * 20)
    first = kept.file_digest(path)
    assert kept.file_digest(path) == first and sorted(parts) == list(range(6))
    path.write_bytes(bytes(range(256)) * 19 + bytes(range(255)) + b"\0")
    assert kept.file_digest(path) != first


@pytest.mark.parametrize(
    "tokens", [np.arange(4.0).reshape(2, 2), np.arange(4, dtype=np.int32), np.zeros((0, 4), np.int32)]
)
def test_arrays_that_are_no_tokens_are_refused(tokens: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", tokens)
    with pytest.raises(ValueError, match=r"train.npy: holds .*, not tokens; remove the folder"):
        read_data(tmp_path, 0.15)


def test_pickled_tokens_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.array([json.loads], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"train.npy: cannot be mapped .*; remove the folder"):
        read_data(tmp_path, 0.15)
