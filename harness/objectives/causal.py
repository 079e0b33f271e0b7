"""Next-token prediction on packed text, or on the answers of a chat alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradwire.harness.data.token_data import Split
from gradwire.harness.objectives.interface import IGNORED, Batch, Key, TextObjective, loss_sums


class Causal(TextObjective):
    """The labels are the inputs, which the model shifts.

    Where the data says which tokens count (`dataset.loss_on=assistant`), the others' labels are ignored.
    """

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        input_ids = self.data.rows(split)[indices].long()
        labels = input_ids.clone()
        counted = self.data.column(split, "counted")
        if counted is not None:
            labels[~counted[indices]] = IGNORED
        return {"input_ids": input_ids, "labels": labels}

    def counted(self, indices: Tensor) -> Tensor | None:
        """The tokens that count, without a row's first, which nothing predicts."""
        counted = self.data.column("train", "counted")
        return None if counted is None else counted[indices][:, 1:].sum(1)

    def sums(self, output: Any, batch: Batch, indices: Tensor) -> tuple[float, ...]:
        count = int((batch["labels"][:, 1:] != IGNORED).sum())
        return loss_sums(output.loss, count)
