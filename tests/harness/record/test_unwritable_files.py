"""Errors of files that cannot be written to the disk."""

import errno
import os
from pathlib import Path

import pytest
import requests
import torch

from gradwire.harness.files.writing import UnwritableFileError, save_tensors, write_atomically, writing


def test_what_a_library_says_of_the_disk_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "weights.safetensors"
    with pytest.raises(UnwritableFileError) as caught:
        save_tensors(path, {"a": torch.zeros(3)})
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value) == (
        f"{path} cannot be written (No such file or directory): mend that, then start again"
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_to_do_fits_scripts_as_well_as_commands(code: int, tmp_path: Path) -> None:
    said = str(UnwritableFileError(tmp_path, os.strerror(code), code))
    assert said.endswith(", then start again")
    assert "hydra" not in said and "command" not in said


def test_a_file_that_is_replaced_stays_where_the_disk_is_full(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        UnwritableFileError, match=r"summary\.json cannot be written \(No space left on device"
    ):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_innermost_file_is_named_and_other_errors_pass(tmp_path: Path) -> None:
    outer, inner = writing(tmp_path / "outer"), writing(tmp_path / "inner")
    with pytest.raises(UnwritableFileError, match="inner cannot"), outer, inner:
        raise OSError("12 requested and 0 written")
    with pytest.raises(UnwritableFileError, match="Not a directory"), writing(tmp_path / "a" / "b"):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(tmp_path))
    for foreign in (
        requests.ConnectionError("host='huggingface.co'"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        TimeoutError("read timed out"),
        FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere/source.txt"),
    ):
        with pytest.raises(type(foreign)) as raised, writing(tmp_path / "file"):
            raise foreign
        assert raised.value is foreign
    with pytest.raises(TypeError, match="no tensor"), writing(tmp_path):
        raise TypeError("no tensor")
