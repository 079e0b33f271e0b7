"""Objectives for data with one example per row: multiple-choice questions, labelled sentences and labelled
images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from gradwire.harness.data.examples import Kind
from gradwire.harness.data.images import ImageData
from gradwire.harness.data.token_data import PreparedData, Split
from gradwire.harness.objectives.interface import IGNORED, Batch, Key, Objective, mean_loss
from gradwire.harness.runtime.seeding import derive_seed


def padded_batch(data: PreparedData, indices: Tensor, split: Split) -> tuple[Batch, Tensor]:
    """Returns (`input_ids` and `attention_mask` of shape (rows, longest row), lengths), all int64.

    Padding is on the right, where tokens of a causal model do not attend to it, and as short as the batch
    allows. The mask excludes it from attention, so that it changes no loss; positions count from the row's
    first token.
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


class Choice(Objective):
    """Fine-tuning on the letter of the answer, and accuracy.

    A row is a question in the form of `prompt_of` (data/examples.py) and the letter of its answer. The loss
    is only on the letter. The predicted choice is the one whose letter has the highest log-likelihood after
    the question; ties go to the first.

    The sums are the negative log-likelihood of the right letters (nats), the number of questions, and the
    number of right predictions.
    """

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
        # The letter is predicted by the logits one position earlier.
        of_letters = output.logits[rows, last - 1].cpu()[:, letters].double()
        choices = column(self.data, "held_out", "choices")[indices]
        of_letters[torch.arange(len(letters)) >= choices[:, None]] = -torch.inf
        right = letters[of_letters.argmax(1)] == batch["input_ids"][rows, last]
        return float(output.loss.double()) * len(rows), float(len(rows)), float(right.sum())

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": mean_loss(sums), "accuracy": sums[2] / sums[1]}


class Classification(Objective):
    """Fine-tuning on labelled sentences. The sums are the losses (nats), the number of examples, and the
    confusion matrix by rows, one for each true label.

    `token_type_ids` distinguish the tokens of a second sentence from those of the first, as in BERT; models
    without two segments do not get them.
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

    0 where it is undefined, because all examples have the same label or all predictions are the same.
    """
    total = sum(map(sum, confusion))
    true = [sum(row) for row in confusion]
    predicted = [sum(column) for column in zip(*confusion, strict=True)]
    right = sum(confusion[label][label] for label in range(len(confusion)))
    shared = sum(a * b for a, b in zip(true, predicted, strict=True))
    spread = (total**2 - sum(a * a for a in true)) * (total**2 - sum(b * b for b in predicted))
    return (right * total - shared) / math.sqrt(spread) if spread else 0.0


BORDER = 8
"""Images are moved by up to 1/8 of their side: CIFAR-10's by 4 pixels (He et al. 2016)."""


class ImageClassification(Classification):
    """Training on labelled images. The sums are those of labelled sentences; the metric is top-1 accuracy."""

    kind: ClassVar[Kind] = "images"
    data: ImageData

    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        pixels = self.data.pixels(split, indices)
        if split == "train" and self.data.augment:
            pixels = torch.stack(
                [moved(image, (*key, index)) for image, index in zip(pixels, indices.tolist(), strict=True)]
            )
        return {"pixel_values": pixels, "labels": column(self.data, split, "label")[indices]}

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        found = super().metrics(sums)
        return {name: found[name] for name in ("loss", "accuracy")}


def moved(image: Tensor, key: Key) -> Tensor:
    """A normalized image, (channels, size, size), shifted within a border of zeros and randomly mirrored: a
    pure function of both arguments."""
    size = image.shape[-1]
    border = size // BORDER
    generator = torch.Generator().manual_seed(derive_seed("augment", *key))
    down, right, mirrored = torch.randint(0, 1 << 30, (3,), generator=generator).tolist()
    down, right = down % (2 * border + 1), right % (2 * border + 1)
    cropped = functional.pad(image, (border,) * 4)[:, down : down + size, right : right + size]
    return cropped.flip(-1) if mirrored % 2 else cropped
