"""Cached folders: complete or absent, filled once."""

import threading
import time
from pathlib import Path

import pytest
import requests

from gradwire.harness.data.cache import FILE, cache_folder, cached_folder


def test_many_at_once_fill_a_folder_once(tmp_path):
    fills, results = [], []

    def fill(folder):
        fills.append(folder)
        (folder / "first").write_text("1")
        time.sleep(0.05)
        (folder / "second").write_text("2")

    def ask():
        folder = cached_folder(tmp_path / "kind" / "key", fill)
        results.append(sorted(file.name for file in folder.iterdir() if file.name != FILE))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1
    assert results == [["first", "second"]] * 8


def test_a_failed_fill_leaves_nothing_and_can_be_repeated(tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise ValueError("no text")

    def interrupted(folder):
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="no text"):
        cached_folder(tmp_path / "key", fail)
    with pytest.raises(KeyboardInterrupt):
        cached_folder(tmp_path / "key", interrupted)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == []
    cached_folder(tmp_path / "key", lambda folder: (folder / "whole").touch())
    assert {file.name for file in (tmp_path / "key").iterdir()} == {"whole", FILE}


def test_what_a_killed_process_has_left_is_cleared_by_the_next(tmp_path):
    killed, other = tmp_path / ".key-1" / "contents", tmp_path / ".other-1" / "contents"
    for leftover in (killed, other):
        leftover.mkdir(parents=True)
        (leftover / "half").touch()
    cached_folder(tmp_path / "key", lambda folder: (folder / "whole").touch())
    assert not killed.parent.exists() and other.exists()


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write prepared data to .*; set GRADWIRE_CACHE=<folder>"):
        cached_folder(tmp_path / "file" / "key", lambda folder: None)


def test_what_fails_beside_the_disk_is_not_said_to_be_the_folder(tmp_path):
    for error in (
        requests.ConnectionError("host='huggingface.co'"),
        FileNotFoundError(2, "No such file or directory", "/data/source.txt"),
        TimeoutError("read timed out"),
    ):

        def fill(folder, error=error):
            raise error

        with pytest.raises(type(error)) as raised:
            cached_folder(tmp_path / "key", fill)
        assert raised.value is error


def test_the_environment_names_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("GRADWIRE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "gradwire"
