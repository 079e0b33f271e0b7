"""Batches of rows that are padded: examples, one for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.harness.data.token_data import PreparedData, Split
from gradwire.harness.objectives.interface import Batch


def padded_batch(data: PreparedData, indices: Tensor, split: Split) -> tuple[Batch, Tensor]:
    """Returns (`input_ids` and `attention_mask` of shape (rows, longest row), lengths), all int64.

    Padding is on the right, where no token of a causal model sees it, and as short as the batch allows. The
    mask hides it from every token, so that it changes no loss; positions count from the row's first token.
    """
    lengths = column(data, split, "length")[indices]
    longest = int(lengths.max())
    input_ids = data.rows(split)[indices, :longest].long()
    attention_mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": input_ids, "attention_mask": attention_mask}, lengths


def column(data: PreparedData, split: Split, name: str) -> Tensor:
    """A column that examples must have, as int64."""
    found = data.column(split, name)
    assert found is not None, f"the data has no column {name}"
    return found.long()
