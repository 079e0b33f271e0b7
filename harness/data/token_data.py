"""Prepared data in the form that training reads: rows, their columns, and the order of training.

The samples of a step are computed from its number alone, so a resumed run needs no loader state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from gradwire.harness.data.cache import REMEDY
from gradwire.harness.data.tokenizer import load_tokenizer
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json
from gradwire.harness.runtime.seeding import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["train", "held_out"]

COLUMN_DTYPES = (np.dtype(np.int32), np.dtype(np.bool_))


@dataclass(frozen=True)
class PreparedData:
    """The rows a run is trained and evaluated on, (num_rows, values) each, memory-mapped.

    `columns` holds further values per row, by split and name. `description` is JSON for the record.
    `tokenizer` is None if rows are not tokens.
    """

    train: Tensor
    held_out: Tensor
    description: dict[str, Any]
    columns: Mapping[Split, Mapping[str, Tensor]] = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerFast | None = None

    @property
    def vocab_size(self) -> int:
        """The number of the tokenizer's entries, which a model with random weights needs; 0 without one."""
        return 0 if self.tokenizer is None else len(self.tokenizer)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels of examples; empty for other data."""
        return tuple(self.description.get("labels", ()))

    def rows(self, split: Split) -> Tensor:
        """The tokens of a split."""
        return self.train if split == "train" else self.held_out

    def column(self, split: Split, name: str) -> Tensor | None:
        """A value for each row of a split, or None if this data has no such column."""
        return self.columns.get(split, {}).get(name)


@dataclass(frozen=True)
class TokenData(PreparedData):
    """The tokens a run is trained and evaluated on.

    `train` and `held_out` have shape (num_rows, sequence_length) and dtype int32, never written to. Rows
    of text are full; those of examples end in padding. `columns` has `counted` (which tokens the loss is on,
    bool), or of examples `length` (tokens without padding), `label`, `second` (where the second sentence
    begins), `choices` (how many there are), all int32.
    """

    tokenizer: PreTrainedTokenizerFast = field(kw_only=True)
    mask_probability: float = 0.15


def column_file(folder: Path, split: Split, name: str) -> Path:
    """The file of a column of the data in `folder`."""
    return folder / f"{split}.{name}.npy"


def read_data(folder: Path, mask_probability: float) -> TokenData:
    """Returns the contents of `folder`; the tokens are memory-mapped, not read.

    The caller must already have checked the digests. Raises UnusableFileError if the files have been damaged
    since.
    """
    train, held_out = (_tokens(folder / f"{split}.npy") for split in ("train", "held_out"))
    return TokenData(
        train=train,
        held_out=held_out,
        tokenizer=load_tokenizer(folder / "tokenizer"),
        description=read_json(folder / "description.json", inside=folder, remedy=REMEDY),
        mask_probability=mask_probability,
        columns={
            "train": columns_of(folder, "train", len(train)),
            "held_out": columns_of(folder, "held_out", len(held_out)),
        },
    )


def columns_of(folder: Path, split: Split, num_rows: int) -> dict[str, Tensor]:
    """The columns of a split's `num_rows` rows by name. Raises UnusableFileError."""
    found = {}
    for file in sorted(folder.glob(column_file(folder, split, "*").name)):
        values = mapped(file)
        if values.dtype not in COLUMN_DTYPES or not values.ndim or len(values) != num_rows:
            raise UnusableFileError(file, f"holds {values.dtype} of shape {values.shape}, no column", REMEDY)
        found[file.name.split(".")[1]] = torch.from_numpy(values)
    return found


def _tokens(file: Path) -> Tensor:
    tokens = mapped(file)
    if tokens.ndim != 2 or tokens.dtype != np.int32 or not tokens.size:
        raise UnusableFileError(file, f"holds {tokens.dtype} of shape {tokens.shape}, not tokens", REMEDY)
    return torch.from_numpy(tokens)


def mapped(file: Path) -> Any:
    """The memory-mapped array of a .npy file. Raises UnusableFileError."""
    try:
        # Mapped copy-on-write, because torch does not support read-only memory and warns about it.
        return np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UnusableFileError(file, f"cannot be mapped ({error})", REMEDY) from None


@dataclass(frozen=True)
class SampleOrder:
    """The order of a run's samples: one endless sequence, with a fresh permutation of all samples per epoch.

    Samples are consumed in order, step by step; within a step, micro-step by micro-step; within a micro-step,
    rank by rank. So each epoch uses every sample exactly once, a batch may span epochs, and a step's samples
    depend only on the product of world size, micro-batch and accumulation.
    """

    num_samples: int
    seed: int
    world_size: int
    micro_batch: int
    accumulation: int

    def indices(self, step: int, micro_step: int, rank: int) -> Tensor:
        """Returns the indices of one micro-batch, shape (micro_batch,), dtype int64."""
        assert self.num_samples > 0
        assert 0 <= micro_step < self.accumulation and 0 <= rank < self.world_size
        start = ((step * self.accumulation + micro_step) * self.world_size + rank) * self.micro_batch
        taken = [divmod(position, self.num_samples) for position in range(start, start + self.micro_batch)]
        size, seed = self.num_samples, self.seed
        return torch.stack([_permutation(size, seed, epoch)[place] for epoch, place in taken])


# The virtual cluster asks for every rank's indices in turn, and a batch spans few epochs, so permutations are
# cached.
@lru_cache(maxsize=4)
def _permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(num_samples, generator=generator)
