"""Batches: which samples a worker takes at a step, and what the model gets of them.

Samples follow from the step by arithmetic alone, so that a resumed run needs no loader state.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from gradwire.harness.data.packing import TokenData
from gradwire.harness.runtime.seeding import derive_seed


def sample_indices(
    num_samples: int,
    seed: int,
    step: int,
    micro_step: int,
    rank: int,
    *,
    world_size: int,
    micro_batch: int,
    accumulation: int,
) -> Tensor:
    """Returns the indices of one micro-batch, shape (micro_batch,), dtype int64.

    A run walks through one endless sequence, with a fresh permutation of all samples per epoch. Steps take
    samples from it in order; within a step, micro-steps; within a micro-step, ranks. So each epoch uses every
    sample exactly once, a batch may span epochs, and a step's samples depend only on the product of world
    size, micro-batch and accumulation.
    """
    assert num_samples > 0 and 0 <= micro_step < accumulation and 0 <= rank < world_size
    start = ((step * accumulation + micro_step) * world_size + rank) * micro_batch
    taken = [divmod(position, num_samples) for position in range(start, start + micro_batch)]
    return torch.stack([_permutation(num_samples, seed, epoch)[place] for epoch, place in taken])


# The virtual cluster asks for every rank in turn; a batch spans few epochs.
@lru_cache(maxsize=4)
def _permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(num_samples, generator=generator)


Split = Literal["train", "held_out"]
IGNORED = -100
"""The label that the losses of transformers ignore."""


def make_batch(
    data: TokenData,
    indices: Tensor,
    objective: str,
    *,
    generator_key: tuple[int | str, ...],
    split: Split = "train",
) -> dict[str, Tensor]:
    """Returns `input_ids` and `labels` of the sequences at `indices`, shape (len(indices), length), int64.

    causal: the labels are the inputs; the model shifts them. masked: see `mask_tokens`. The masks are a pure
    function of (`generator_key`, sample). With (seed, step) as the key, a sample has the same mask on every
    rank and a new one at every step. The held-out split ignores the key: its masks never change. Sequences
    are full, so no attention mask is needed.
    """
    input_ids = getattr(data, split)[indices].to(torch.int64)
    if objective == "causal":
        return {"input_ids": input_ids, "labels": input_ids.clone()}
    assert objective == "masked", objective
    key = generator_key if split == "train" else ("held_out",)
    masked = [
        mask_tokens(row, data, torch.Generator().manual_seed(derive_seed("masking", *key, index)))
        for row, index in zip(input_ids, indices.tolist(), strict=True)
    ]
    inputs, labels = zip(*masked, strict=True)
    return {"input_ids": torch.stack(inputs), "labels": torch.stack(labels)}


def mask_tokens(tokens: Tensor, data: TokenData, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns (inputs, labels) of one sequence, both of shape (length,), int64 (BERT §3.1).

    A share of `mask_probability` of the tokens must be restored, rounded to at least one token because a loss
    over none would be NaN. Special tokens are never chosen. 80 % of the chosen tokens are replaced by the
    mask token, 10 % by a random token, and 10 % stay. All other labels are -100.
    """
    special = torch.tensor(data.tokenizer.all_special_ids)
    candidates = torch.nonzero(~torch.isin(tokens, special)).flatten()
    num_chosen = min(len(candidates), max(1, round(data.mask_probability * len(candidates))))
    chosen = candidates[torch.randperm(len(candidates), generator=generator)[:num_chosen]]
    labels = torch.full_like(tokens, IGNORED)
    labels[chosen] = tokens[chosen]

    fate = torch.rand(num_chosen, generator=generator)
    random_tokens = torch.randint(data.vocab_size, (num_chosen,), generator=generator)
    mask = torch.full_like(random_tokens, _mask_id(data))
    inputs = tokens.clone()
    inputs[chosen] = torch.where(fate < 0.8, mask, torch.where(fate < 0.9, random_tokens, tokens[chosen]))
    return inputs, labels


def _mask_id(data: TokenData) -> int:
    mask_id = data.tokenizer.mask_token_id
    if not isinstance(mask_id, int):
        raise ValueError(
            f"model.objective=masked: the tokenizer {data.tokenizer.name_or_path} has no mask token; "
            "use model.objective=causal or model.weights=random"
        )
    return mask_id
