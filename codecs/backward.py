"""Gradients of hidden states, which a pipeline's stages send back, and the codecs that compress them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gradwire.codecs.interface import Layout, Round


@dataclass(frozen=True)
class BackwardMessage:
    """The gradient of a micro-batch's hidden states, which a stage sends the one before it.

    `stage` is the sender's index among `stages`, counted from 0 in the order of the layers; `shape` is (rows,
    tokens of each, hidden size) and may differ between micro-batches. A message is `in_epilogue` if the
    receiving stage has no forward pass left and only waits for the last gradients.
    """

    step: int
    micro_batch: int
    stage: int
    stages: int
    shape: tuple[int, int, int]
    in_epilogue: bool
    seed: int
    replica: int = 0
    device: torch.device = torch.device("cpu")

    @property
    def link(self) -> str:
        """The name that all messages of this sender share."""
        return f"stage{self.stage}"

    @property
    def numel(self) -> int:
        rows, tokens, hidden = self.shape
        return rows * tokens * hidden

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The shape as a matrix: a row for each token."""
        rows, tokens, hidden = self.shape
        return rows * tokens, hidden

    def round(self) -> Round:
        """The round whose key generates the random numbers that all replicas share."""
        layout = Layout.flat(self.numel, f"backward of {self.link}", self.device)
        return Round(self.step, layout, 0, 1, self.seed, stage=self.stage, stages=self.stages)


@runtime_checkable
class CompressesBackward(Protocol):
    """A codec that encodes the gradients of hidden states, too, for the stage before.

    The sender's codec encodes and the receiver's decodes. The two codecs share their settings and nothing
    else, so a message must be decodable on its own. Anything that a sender remembers from message to message
    is part of its codec's state, and `skip_step` undoes it. The receiver must be able to detect a gradient
    that is not finite.
    """

    @abstractmethod
    def backward_bytes(self, message: BackwardMessage) -> int:
        """Bytes of a message, a function of the settings and `message` alone."""
        ...

    @abstractmethod
    def encode_backward(self, gradient: Tensor, message: BackwardMessage) -> Tensor:
        """Encodes `gradient`, float32 of `message.shape`, as (backward_bytes,) uint8.

        `gradient` is not written to and may itself be returned. Called once for each message, in order.
        """
        ...

    @abstractmethod
    def decode_backward(self, received: Tensor, message: BackwardMessage) -> Tensor:
        """The gradient, float32 of `message.shape`; may be a view of what was received."""
        ...
