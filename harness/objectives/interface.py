"""The interface between the trainer and an objective."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradwire.harness.data.examples import Kind
from gradwire.harness.data.token_data import PreparedData, Split, TokenData

IGNORED = -100
"""The label that the losses of transformers ignore."""

Batch = dict[str, Tensor]
"""The arguments of one of transformers' models, including `labels`, so that its output contains the loss."""

Key = tuple[int | str, ...]


class Objective(ABC):
    """The loss and the metrics that a model is trained and judged by, on the rows of `data`.

    The model's head is an entry of `HEADS` in `models/families.py`.
    """

    kind: ClassVar[Kind]
    """The kind of data that the data set must hold."""

    def __init__(self, data: PreparedData, num_segments: int = 2) -> None:
        """`num_segments` is the number of sentences in a row that the model distinguishes by
        `token_type_ids`."""
        self.data, self.num_segments = data, num_segments

    @property
    @abstractmethod
    def metric(self) -> str:
        """The metric used for time-to-accuracy: a key of METRICS and of the result of `metrics`."""

    @property
    @abstractmethod
    def num_sums(self) -> int:
        """The number of values that `sums` returns."""

    @abstractmethod
    def batch(self, indices: Tensor, *, split: Split = "train", key: Key = ()) -> Batch:
        """The batch of the rows at `indices` (int64), a pure function of its arguments.

        Random choices depend on the row and on `key`: with (seed, step), a row gets the same choices on every
        rank and new ones in every step. The held-out split ignores `key`: its batches never change.
        """

    @property
    def tokens_per_row(self) -> int | None:
        """The number of tokens of each training row; None if rows are not tokens, or have different numbers
        of them."""
        return None

    def counted(self, indices: Tensor) -> Tensor | None:
        """The number of labels that the loss is on in each training row at `indices`, (rows,), for any key of
        their batch; None if all rows have the same number."""
        return None

    @abstractmethod
    def sums(self, output: Any, batch: Batch, indices: Tensor) -> tuple[float, ...]:
        """The contribution of the held-out rows at `indices` to an evaluation, from the model's `output` for
        `batch`.

        Metrics are computed from the sums over all batches, added in float64 and in order.
        """

    @abstractmethod
    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """The metrics of an evaluation by their keys in METRICS, the loss (nats) first."""

    @torch.no_grad()
    def evaluate(self, model: nn.Module, indices: Tensor, device: torch.device) -> tuple[float, ...]:
        """`sums` of the held-out rows at `indices`. The model must be in evaluation mode."""
        batch = self.batch(indices, split="held_out")
        output = model(**{name: value.to(device) for name, value in batch.items()})
        return self.sums(output, batch, indices)


class TextObjective(Objective):
    """An objective that predicts tokens of packed text; rows are full, so that no attention mask is needed.

    Its two sums are the negative log-likelihoods (nats) and the number of predicted tokens.
    """

    kind = "documents"
    data: TokenData

    @property
    def metric(self) -> str:
        return "perplexity"

    @property
    def num_sums(self) -> int:
        return 2

    @property
    def tokens_per_row(self) -> int | None:
        return int(self.data.train.shape[1])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        loss = mean_loss(sums)
        return {"loss": loss, "perplexity": perplexity(loss)}


def loss_sums(loss: Tensor, count: int) -> tuple[float, float]:
    """The contribution of a batch, whose loss is a mean over `count` labels, to the sum of losses and their
    number; 0 if there are no labels, for which the mean is NaN."""
    return (float(loss.double()) * count if count else 0.0), float(count)


def mean_loss(sums: Sequence[float]) -> float:
    """The mean of the losses whose sum and number are the first two of `sums`."""
    return float(sums[0] / sums[1])


def perplexity(loss: float) -> float:
    """exp(loss), or infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
