"""Sentences and pairs of them with one label each: cross entropy, accuracy, Matthews correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.harness.data.examples import Kind
from gradwire.harness.data.token_data import Split
from gradwire.harness.objectives.interface import Batch, Key, Objective, mean_loss
from gradwire.harness.objectives.padding import column, padded_batch


class Classification(Objective):
    """Sums: of the losses (nats), of examples, and the confusion matrix by rows, one for each true label.

    `token_type_ids` tell the tokens of a second sentence from those of the first, as in BERT; models without
    two segments get none.
    """

    kind: ClassVar[Kind] = "sentences"

    @property
    def metric(self) -> str:
        return str(self.data.description["metric"])

    @property
    def num_sums(self) -> int:
        return 2 + len(self.data.labels) ** 2

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        batch, lengths = padded_batch(self.data, indices, split)
        batch |= {"labels": column(self.data, split, "label")[indices]}
        if self.num_segments < 2:
            return batch
        second = column(self.data, split, "second")[indices]
        places = torch.arange(batch["input_ids"].shape[1])
        in_second = (places >= second[:, None]) & (places < lengths[:, None])
        return batch | {"token_type_ids": in_second.long()}

    def sums(self, output: Any, batch: Batch, indices: Tensor) -> tuple[float, ...]:
        count, true = len(self.data.labels), batch["labels"]
        predicted = output.logits.cpu().argmax(1)
        confusion = torch.bincount(true * count + predicted, minlength=count**2)
        return float(output.loss.double()) * len(true), float(len(true)), *map(float, confusion.tolist())

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        count = len(self.data.labels)
        confusion = [list(sums[2 + row * count : 2 + (row + 1) * count]) for row in range(count)]
        right = sum(confusion[label][label] for label in range(count))
        return {
            "loss": mean_loss(sums),
            "accuracy": right / sums[1],
            "matthews": matthews_correlation(confusion),
        }


def matthews_correlation(confusion: Sequence[Sequence[float]]) -> float:
    """Matthews correlation of a confusion matrix with a row for each true label (Gorodkin 2004).

    0 where it has no value, because all examples have one label or all predictions are one.
    """
    total = sum(map(sum, confusion))
    true = [sum(row) for row in confusion]
    predicted = [sum(column) for column in zip(*confusion, strict=True)]
    right = sum(confusion[label][label] for label in range(len(confusion)))
    shared = sum(a * b for a, b in zip(true, predicted, strict=True))
    spread = (total**2 - sum(a * a for a in true)) * (total**2 - sum(b * b for b in predicted))
    return (right * total - shared) / math.sqrt(spread) if spread else 0.0
