"""Objectives on packed text: the next token, and BERT's masked language modelling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwire.harness.data.token_data import Split, TokenData
from gradwire.harness.objectives.interface import IGNORED, Batch, Key, TextObjective, loss_sums
from gradwire.harness.runtime.seeding import derive_seed


class Causal(TextObjective):
    """Predicts the next token. The labels are the inputs, which the model shifts.

    If the loss is only on some tokens (`dataset.loss_on=assistant`), the labels of others are ignored.
    """

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        input_ids = self.data.rows(split)[indices].long()
        labels = input_ids.clone()
        counted = self.data.column(split, "counted")
        if counted is not None:
            labels[~counted[indices]] = IGNORED
        return {"input_ids": input_ids, "labels": labels}

    def counted(self, indices: Tensor) -> Tensor | None:
        """The number of tokens that count, without a row's first one, which is not predicted."""
        counted = self.data.column("train", "counted")
        return None if counted is None else counted[indices][:, 1:].sum(1)

    def sums(self, output: Any, batch: Batch, indices: Tensor) -> tuple[float, ...]:
        count = int((batch["labels"][:, 1:] != IGNORED).sum())
        return loss_sums(output.loss, count)


class Masked(TextObjective):
    """Hides a share of the tokens, which the model must restore: see `mask_tokens`."""

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        input_ids = self.data.rows(split)[indices].long()
        chosen = key if split == "train" else ("held_out",)
        masked = [
            mask_tokens(row, self.data, torch.Generator().manual_seed(derive_seed("masking", *chosen, index)))
            for row, index in zip(input_ids, indices.tolist(), strict=True)
        ]
        inputs, labels = zip(*masked, strict=True)
        return {"input_ids": torch.stack(inputs), "labels": torch.stack(labels)}

    def counted(self, indices: Tensor) -> Tensor | None:
        """The number of hidden tokens: smaller in a row with many special tokens."""
        candidates = _may_be_chosen(self.data.train[indices], self.data).sum(1)
        return torch.tensor([_num_chosen(own, self.data.mask_probability) for own in candidates.tolist()])

    def sums(self, output: Any, batch: Batch, indices: Tensor) -> tuple[float, ...]:
        count = int((batch["labels"] != IGNORED).sum())
        return loss_sums(output.loss, count)


def mask_tokens(tokens: Tensor, data: TokenData, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns (inputs, labels) of one sequence, both of shape (length,), int64 (BERT §3.1).

    A share of `mask_probability` of the tokens must be restored, rounded to at least one token because a loss
    over none would be NaN. Special tokens are never chosen. 80 % of the chosen tokens are replaced by the
    mask token, 10 % by a random token, and 10 % stay. All other labels are -100.
    """
    candidates = torch.nonzero(_may_be_chosen(tokens, data)).flatten()
    num_chosen = _num_chosen(len(candidates), data.mask_probability)
    chosen = candidates[torch.randperm(len(candidates), generator=generator)[:num_chosen]]
    labels = torch.full_like(tokens, IGNORED)
    labels[chosen] = tokens[chosen]

    fate = torch.rand(num_chosen, generator=generator)
    random_tokens = torch.randint(data.vocab_size, (num_chosen,), generator=generator)
    mask = torch.full_like(random_tokens, _mask_id(data))
    inputs = tokens.clone()
    inputs[chosen] = torch.where(fate < 0.8, mask, torch.where(fate < 0.9, random_tokens, tokens[chosen]))
    return inputs, labels


def _may_be_chosen(tokens: Tensor, data: TokenData) -> Tensor:
    """True for each token that is not a special one."""
    return ~torch.isin(tokens, torch.tensor(data.tokenizer.all_special_ids))


def _num_chosen(candidates: int, probability: float) -> int:
    """The number of tokens of a row that are chosen."""
    return min(candidates, max(1, round(probability * candidates)))


def _mask_id(data: TokenData) -> int:
    mask_id = data.tokenizer.mask_token_id
    if not isinstance(mask_id, int):
        raise ValueError(
            f"model.objective=masked: the tokenizer {data.tokenizer.name_or_path} has no mask token; "
            "use model.objective=causal or model.weights=random"
        )
    return mask_id
