"""Compressed text: equal bytes for equal text, and nothing unsound or too long is read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gradwire.harness.files.compressed import compressed, read_compressed

TEXT = "cell,metric,value\n" + "".join(f"ü{index},loss,{index / 7}\n" for index in range(500))


def test_equal_text_gives_equal_bytes_without_a_time_or_a_name(tmp_path: Path) -> None:
    packed = compressed(TEXT)
    assert packed == compressed(TEXT) and packed[4:8] == bytes(4) and packed[3] == 0
    assert gzip.decompress(packed).decode() == TEXT and len(packed) < len(TEXT) / 2
    (tmp_path / "a.gz").write_bytes(packed)
    assert read_compressed(tmp_path / "a.gz", remedy="") == TEXT


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is cut off"),
        (TEXT.encode(), "is not a sound gzip file"),
        (compressed(TEXT)[:-9], "it is cut off"),
        (compressed(TEXT)[:-1], "it is cut off"),
        (compressed(TEXT)[:-6] + b"\0" * 6, "incorrect"),
        (compressed(TEXT) + compressed("more"), "something follows its end"),
        (gzip.compress(b"\xff\xfe", mtime=0), "is not UTF-8"),
        (gzip.compress(bytes(2**24), mtime=0), "unpacks to more than 1 MiB, the most that is read"),
    ],
)
def test_unsound_files_are_refused_in_one_line(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(ValueError, match=problem) as error:
        read_compressed(tmp_path / "a.gz", remedy="do that", most=2**20)
    assert "\n" not in str(error.value) and str(error.value).endswith("; do that")
