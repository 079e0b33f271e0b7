"""Training text that expands without end: refused in one line, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from gradwire.harness.data import formats
from gradwire.harness.data.chat import plain_chat
from gradwire.harness.data.formats import read_pieces
from gradwire.harness.data.text import TextCorpus
from gradwire.harness.files import hostile


@pytest.fixture(autouse=True)
def _low_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is noticed after 16 MiB; here after 256 KiB, which are made in less time."""
    monkeypatch.setattr(hostile, "FLOOR", 2**18)


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize(
    "name", ["a.txt.gz", "lines.txt.gz", "a.jsonl.bz2", "a.json.xz", "lines.csv.gz", "a.txt.zst"]
)
def test_a_bomb_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    unit = b"aaaaaaaa\n" if name.startswith("lines") else b"a" * 9
    path.write_bytes(PACKED.get(path.suffix, _zstd)((b"text\n" if "csv" in name else b"") + unit * 2**17))
    with pytest.raises(
        ValueError, match=r"expands to more than .* as no text does; if it is valid"
    ) as refusal:
        list(TextCorpus(path).load().train)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)
    assert len(str(refusal.value)) - len(str(path)) < 200


def _zstd(content: bytes) -> bytes:
    import pyarrow

    return bytes(pyarrow.compress(content, "zstd", asbytes=True))


def test_what_repeats_itself_like_a_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt.gz"
    text = "\n".join(f"step {n}, loss {n % 7}.{n % 13}" for n in range(60_000))
    path.write_bytes(gzip.compress(text.encode()))
    assert len(text) > 4 * hostile.FLOOR
    with formats.open_text(path) as handle:
        assert handle.read() == text


def test_a_parquet_column_that_says_so_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["a" * 2**22, "b" * 2**22]})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    with pytest.raises(ValueError, match=r"column text expands to .* as no text does; use another file"):
        list(read_pieces(path, "text", plain_chat))


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": "a", "n": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_brackets_and_digits_by_the_thousand_are_refused(name: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"line 1 is not"):
        list(read_pieces(path, "text", plain_chat))
