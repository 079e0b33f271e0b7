"""Multiple-choice questions: fine-tuning on the answer's letter, and accuracy.

A row is a question in the form of `prompt_of` (data/examples.py) and the letter of its answer. The loss is on
the letter alone. Right is the choice whose letter has the highest log-likelihood after the question; of
several, the first one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.data.token_data import Split
from gradwire.harness.objectives.interface import IGNORED, Batch, Key, Objective, mean_loss
from gradwire.harness.objectives.padding import column, padded_batch


class Choice(Objective):
    """Sums: of the negative log-likelihoods of the right letters (nats), of questions, of right answers."""

    kind = "questions"

    @property
    def metric(self) -> str:
        return str(self.data.description["metric"])

    @property
    def num_sums(self) -> int:
        return 3

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        batch, lengths = padded_batch(self.data, indices, split)
        last = (lengths - 1)[:, None]
        labels = torch.full_like(batch["input_ids"], IGNORED)
        labels.scatter_(1, last, batch["input_ids"].gather(1, last))
        return batch | {"labels": labels}

    def sums(self, output: Any, batch: Batch, indices: Tensor) -> tuple[float, ...]:
        rows = torch.arange(len(indices))
        last = batch["attention_mask"].sum(1) - 1
        letters = torch.tensor(self.data.description["answer_tokens"])
        # The logits one place earlier are those of the letter.
        of_letters = output.logits[rows, last - 1].cpu()[:, letters].double()
        choices = column(self.data, "held_out", "choices")[indices]
        of_letters[torch.arange(len(letters)) >= choices[:, None]] = -torch.inf
        right = letters[of_letters.argmax(1)] == batch["input_ids"][rows, last]
        return float(output.loss.double()) * len(rows), float(len(rows)), float(right.sum())

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": mean_loss(sums), "accuracy": sums[2] / sums[1]}
