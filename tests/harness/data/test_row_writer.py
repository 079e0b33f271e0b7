"""Rows written in parts equal those written at once."""

import numpy as np
import pytest

from gradwire.harness.data import row_writer as rows
from gradwire.harness.data.row_writer import CountedRowWriter, RowWriter


@pytest.mark.parametrize("at_once", [1, 10, 2**20])
@pytest.mark.parametrize("most_rows", [None, 0, 3, 1000])
def test_pieces_become_rows_of_one_file(tmp_path, monkeypatch, at_once, most_rows):
    monkeypatch.setattr(rows, "TOKENS_AT_ONCE", at_once)
    lengths = np.random.default_rng(0).integers(0, 40, 60)
    pieces = np.split(np.arange(lengths.sum()) - 5, np.cumsum(lengths)[:-1])
    with RowWriter(tmp_path / "rows.npy", 7, most_rows) as writer:
        for number, piece in enumerate(pieces):
            taken = writer.num_tokens
            assert writer.is_full == (most_rows is not None and taken >= 7 * most_rows)
            writer.append(piece.tolist())
            if most_rows is None:
                assert writer.num_tokens == lengths[: number + 1].sum()
    written = np.load(tmp_path / "rows.npy", mmap_mode="r")
    expected = (np.arange(lengths.sum() // 7 * 7) - 5).reshape(-1, 7)[:most_rows]
    assert written.dtype == np.int32 and np.array_equal(written, expected)
    assert writer.num_rows == len(expected)


def test_without_tokens_the_file_is_empty_and_whole(tmp_path):
    with RowWriter(tmp_path / "rows.npy", 5):
        pass
    assert np.load(tmp_path / "rows.npy").shape == (0, 5)


def test_tokens_of_an_incomplete_row_are_counted(tmp_path):
    lengths = (3, 0, 6, 1, 9)
    with CountedRowWriter(tmp_path / "rows.npy", tmp_path / "counted.npy", 5) as writer:
        for number, length in enumerate(lengths):
            writer.append(range(length), [True] * length)
            taken = sum(lengths[: number + 1])
            assert (writer.num_tokens, writer.num_rows, writer.num_counted) == (
                taken,
                taken // 5,
                taken // 5 * 5,
            )
