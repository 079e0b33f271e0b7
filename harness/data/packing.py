"""Documents to sequences of equal length.

"Truncate and pack tokens into fixed-length sequences, samples may be merged" (DynamiQ, appendix).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .corpus import Corpus
from .tokenizer import load_tokenizer, separator_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DOCUMENTS_AT_ONCE = 1000


@dataclass(frozen=True)
class TokenData:
    """What a run trains and is evaluated on.

    `train` and `held_out` have shape (num_sequences, sequence_length), dtype int32, and are mapped
    from disk: nobody writes to them. `description` is JSON for the record.
    """

    train: Tensor
    held_out: Tensor
    tokenizer: PreTrainedTokenizerFast
    description: dict[str, Any]
    mask_probability: float = 0.15

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer: what a model with random weights needs."""
        return len(self.tokenizer)


def pack(
    documents: Sequence[str], tokenizer: PreTrainedTokenizerFast, sequence_length: int
) -> NDArray[np.int32]:
    """All documents, each followed by the separator, cut into rows of `sequence_length` tokens.

    Shape (num_sequences, sequence_length); the incomplete last row is dropped.
    """
    separator = separator_id(tokenizer)
    pieces: list[NDArray[np.int32]] = []
    for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
        encoded = tokenizer(
            list(documents[start : start + DOCUMENTS_AT_ONCE]),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # documents longer than the model's context are what packing is for
        )["input_ids"]
        pieces += [np.array([*tokens, separator], dtype=np.int32) for tokens in encoded]
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    num_sequences = len(tokens) // sequence_length
    return tokens[: num_sequences * sequence_length].reshape(num_sequences, sequence_length)


def unigram_perplexity(tokens: NDArray[np.int32]) -> float:
    """exp of the entropy (nats) of the tokens' own distribution.

    What the best model without context would score on them: below it a model has learned order.
    """
    counts = np.unique(tokens, return_counts=True)[1]
    frequencies = counts / counts.sum()
    return float(np.exp(-(frequencies * np.log(frequencies)).sum()))


def write_packed(
    folder: Path,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    sequence_length: int,
    max_held_out_sequences: int | None,
) -> None:
    """Write to `folder` what `read_packed` reads. Raises ValueError if a split fills no sequence."""
    train = pack(corpus.train, tokenizer, sequence_length)
    held_out = pack(corpus.held_out, tokenizer, sequence_length)[:max_held_out_sequences]
    for split, rows in (("training", train), ("held-out", held_out)):
        if not len(rows):
            raise ValueError(
                f"dataset: the {split} documents of {corpus.name} fill no sequence of {sequence_length} "
                "tokens; use more text (dataset.path=) or a smaller dataset.sequence_length="
            )
    np.save(folder / "train.npy", train)
    np.save(folder / "held_out.npy", held_out)
    tokenizer.save_pretrained(folder / "tokenizer")
    description = {
        "corpus": corpus.name,
        "sha256": corpus.sha256,
        "bytes": corpus.num_bytes,
        "split": corpus.split,
        "train_documents": len(corpus.train),
        "held_out_documents": len(corpus.held_out),
        "train_tokens": train.size,
        "held_out_tokens": held_out.size,
        "vocab_size": len(tokenizer),
        "sequence_length": sequence_length,
        "unigram_perplexity": unigram_perplexity(held_out),
    }
    (folder / "description.json").write_text(json.dumps(description, indent=1), encoding="utf-8")


def read_packed(folder: Path, mask_probability: float) -> TokenData:
    """The contents of `folder`, the tokens mapped and not read."""
    return TokenData(
        train=_mapped(folder / "train.npy"),
        held_out=_mapped(folder / "held_out.npy"),
        tokenizer=load_tokenizer(folder / "tokenizer"),
        description=json.loads((folder / "description.json").read_text(encoding="utf-8")),
        mask_probability=mask_probability,
    )


def _mapped(file: Path) -> Tensor:
    # Copy-on-write rather than read-only, which torch has no notion of and warns about.
    return torch.from_numpy(np.load(file, mmap_mode="c"))
