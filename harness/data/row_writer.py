"""Rows of equal length in a growing .npy file, for tokens that do not fit in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

TOKENS_AT_ONCE = 2**20
"""The number of tokens kept in memory before they are written."""


class RowWriter:
    """Cuts a stream of tokens into rows of `row_length`; an incomplete last row is dropped.

    With `most_rows` None there is no limit. The file is a valid .npy file once the writer is closed.
    """

    def __init__(
        self, file: Path, row_length: int, most_rows: int | None = None, dtype: type[np.generic] = np.int32
    ) -> None:
        self.row_length, self._most_rows, self._dtype = row_length, most_rows, np.dtype(dtype)
        self._pieces: list[NDArray[Any]] = []
        self._num_kept = self.num_rows = 0
        self._handle = file.open("wb")
        self._write_header()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def num_tokens(self) -> int:
        """The number of tokens taken so far, including those of an incomplete last row."""
        return self.num_rows * self.row_length + self._num_kept

    @property
    def is_full(self) -> bool:
        return self._most_rows is not None and self.num_tokens >= self._most_rows * self.row_length

    def append(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        self._pieces.append(np.array(tokens, dtype=self._dtype))
        self._num_kept += len(tokens)
        if self._num_kept >= TOKENS_AT_ONCE or self.is_full:
            self._write()

    def close(self) -> None:
        """Writes the rest and records the number of rows in the header."""
        if not self._handle.closed:
            self._write()
            self._handle.seek(0)
            self._write_header()
            self._handle.close()

    def _write(self) -> None:
        tokens = np.concatenate([np.zeros(0, self._dtype), *self._pieces])
        num_rows = len(tokens) // self.row_length
        if self._most_rows is not None:
            num_rows = min(num_rows, self._most_rows - self.num_rows)
        tokens[: num_rows * self.row_length].tofile(self._handle)
        self.num_rows += num_rows
        rest = tokens[num_rows * self.row_length :]
        self._pieces, self._num_kept = [rest], len(rest)

    def _write_header(self) -> None:
        """Writes the header, which has the same length for any number of rows: numpy pads it for arrays that
        grow."""
        shape = (self.num_rows, self.row_length)
        described = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._handle, described)


class CountedRowWriter:
    """Rows of tokens, and a second file with a mask of the tokens that the loss is on.

    A row without such tokens is dropped, because the mean over none would be NaN. (The first token of a row
    is never predicted.)
    """

    def __init__(self, file: Path, counted_file: Path, row_length: int, most_rows: int | None = None) -> None:
        self._tokens = RowWriter(file, row_length, most_rows)
        self._counted = RowWriter(counted_file, row_length, most_rows, np.bool_)
        self.row_length = row_length
        self._kept: tuple[list[int], list[bool]] = ([], [])
        self.num_counted = self.num_left_out = 0

    def __enter__(self) -> CountedRowWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for writer in (self._tokens, self._counted):
            writer.close()

    @property
    def num_rows(self) -> int:
        return self._tokens.num_tokens // self.row_length

    @property
    def num_tokens(self) -> int:
        """The number of tokens taken so far, including those of an incomplete last row."""
        return self._tokens.num_tokens + len(self._kept[0])

    @property
    def is_full(self) -> bool:
        return self._tokens.is_full

    def append(self, tokens: Sequence[int], counted: Sequence[bool]) -> None:
        """Appends tokens, with a flag for each that says whether the loss is on it."""
        tokens, counted = self._kept[0] + list(tokens), self._kept[1] + list(counted)
        whole = len(tokens) // self.row_length * self.row_length
        for start in range(0, whole, self.row_length):
            row = slice(start, start + self.row_length)
            if not any(counted[row][1:]):
                self.num_left_out += 1
            elif not self.is_full:
                self._tokens.append(tokens[row])
                self._counted.append(counted[row])
                self.num_counted += sum(counted[row])
        self._kept = (tokens[whole:], counted[whole:])
