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

    `stage` is the sender's, of `stages`, counted from 0 on in the order of the layers; `shape` is (rows,
    tokens of each, hidden size) and may differ between micro-batches. A message is `in_epilogue` if the stage
    that gets it has no forward pass left to compute but only waits for the last gradients.
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
        """The name of what all messages of this sender share."""
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
        """The round whose key is that of random numbers that all replicas share."""
        layout = Layout.flat(self.numel, f"backward of {self.link}", self.device)
        return Round(self.step, layout, 0, 1, self.seed, stage=self.stage, stages=self.stages)


@runtime_checkable
class CompressesBackward(Protocol):
    """A codec that encodes the gradients of hidden states, too, for the stage before.

    The sender's codec encodes and the receiver's decodes: two ranks' codecs with the same settings. They
    share nothing else, so that a message says everything itself. What a sender remembers from message to
    message is part of its codec's state, taken back by `skip_step`. A gradient that is not finite must be
    seen by the receiver.
    """

    @abstractmethod
    def backward_bytes(self, message: BackwardMessage) -> int:
        """The size of a message: it follows from the settings and `message` alone."""
        ...

    @abstractmethod
    def encode_backward(self, gradient: Tensor, message: BackwardMessage) -> Tensor:
        """(backward_bytes,) uint8 for `gradient`, float32 of `message.shape`; it is not written to, and may
        be what is returned. Called once for each message, in their order."""
        ...

    @abstractmethod
    def decode_backward(self, received: Tensor, message: BackwardMessage) -> Tensor:
        """The gradient, float32 of `message.shape`; may be a view of what was received."""
        ...
