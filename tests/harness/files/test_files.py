"""Files that others wrote: what is refused before and while they are read, each in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.harness.files.reading import (
    InaccessibleFileError,
    MissingFileError,
    UnusableFileError,
    open_file,
    printable,
    read_lines,
    read_text,
    refuse_links,
)

WAY_OUT = "mend it"


def refusal(read: Callable[..., Any], *arguments: Any, **options: Any) -> UnusableFileError:
    """The error that reading ends in: one line with the path before and the way out behind."""
    with pytest.raises(UnusableFileError) as caught:
        found = read(*arguments, remedy=WAY_OUT, **options)
        list(found) if hasattr(found, "__next__") else None
    text = str(caught.value)
    assert text.startswith(f"{printable(str(arguments[0]), 4096)}: ")
    assert text.endswith(f"; {WAY_OUT}")
    assert text.isprintable()
    return caught.value


def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in str(refusal(read_text, tmp_path / "pipe"))
    assert "is not a regular file" in str(refusal(read_text, "/dev/zero"))
    assert "is a folder" in str(refusal(read_text, tmp_path))
    (tmp_path / "made up").symlink_to("/proc/self/environ")
    assert "is a file without a length" in str(refusal(read_text, tmp_path / "made up"))
    assert "is not a path" in str(refusal(read_text, tmp_path / "a\0b"))
    assert isinstance(refusal(read_text, tmp_path / "none"), MissingFileError)


def test_inaccessible_files_are_distinguished_from_damaged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()

    def refused(path: Path, flags: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", refused)
    error = refusal(read_text, tmp_path / "file")
    assert isinstance(error, InaccessibleFileError)
    assert "Input/output error" in str(error)


def test_length_and_text_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_text(path, remedy=WAY_OUT, most=10) == "0123456789"
    assert "longer than 9 bytes" in str(refusal(read_text, path, most=9))
    path.write_bytes(b"ab\xff")
    assert "is not UTF-8 text (invalid start byte at byte 2)" in str(refusal(read_text, path))


def test_lines_come_one_at_a_time_and_a_long_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1234\n\n123456789\n")
    assert list(read_lines(path, remedy=WAY_OUT, most=10)) == [b"1234\n", b"\n", b"123456789\n"]
    assert "line 3 is longer than 9 bytes" in str(refusal(read_lines, path, most=9))


def test_no_link_is_followed_out_of_a_directory(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    (outside / "folder").mkdir(parents=True)
    (run / "real").mkdir(parents=True)
    for place in (outside / "file", outside / "folder" / "file", run / "real" / "file"):
        place.write_text("secret")
    (run / "file").symlink_to(outside / "file")
    (run / "folder").symlink_to(outside / "folder")
    assert read_text(run / "file", remedy=WAY_OUT) == "secret", "the user's own path"
    assert read_text(run / "real" / "file", inside=run, remedy=WAY_OUT) == "secret"
    latest = tmp_path / "latest"
    latest.symlink_to(run)  # the directory itself is the user's choice
    assert read_text(latest / "real" / "file", inside=latest, remedy=WAY_OUT) == "secret"
    assert f"{run / 'file'}: is a link" in str(refusal(read_text, run / "file", inside=run))
    for name, wrong in (("folder/file", "is a link"), ("../outside/file", "lies outside")):
        with pytest.raises(UnusableFileError, match=wrong):
            open_file(run / name, inside=run, remedy=WAY_OUT)
    with pytest.raises(UnusableFileError, match="lies outside"):
        refuse_links(outside / "file", run, remedy=WAY_OUT)


def test_foreign_text_cannot_drive_a_terminal() -> None:
    assert printable("a\nb\x1b[31m\u202ec\ud800") == "a b\\x1b[31m\\u202ec\\ud800"
    assert printable("é ≤ 数") == "é ≤ 数"
    assert printable("x" * 300) == "x" * 199 + "…"
