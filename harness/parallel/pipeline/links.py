"""What neighbouring stages send one another: hidden states, and their gradients as codecs encode them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.backward import BackwardMessage, CompressesBackward
from gradwire.codecs.interface import Codec
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.models.stages import Stage
from gradwire.harness.parallel.interface import Batch
from gradwire.harness.parallel.pipeline.schedule import Pass, in_epilogue


class Links:
    """One rank's messages in one step: those that it receives before passes and sends after them.

    Hidden states travel in float32, and their gradients, too, unless the rank's codec encodes them.
    """

    def __init__(
        self,
        codec: Codec,
        stage: Stage,
        stages: int,
        batches: Sequence[Batch],
        *,
        step: int,
        seed: int,
        replica: int,
    ) -> None:
        inner = innermost(codec)
        self._codec = inner if isinstance(inner, CompressesBackward) else None
        self._stage, self._stages, self._batches = stage, stages, batches
        self._step, self._seed, self._replica = step, seed, replica

    def buffer(self, one: Pass) -> Tensor:
        """Room for what a pass needs from another stage."""
        shape, device = self._shape(one), self._batches[one.micro_batch]["input_ids"].device
        if not self.encodes(one):
            return torch.empty(shape, device=device)
        assert self._codec is not None
        num_bytes = self._codec.backward_bytes(self._received(one))
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def encodes(self, one: Pass) -> bool:
        """Whether the codec encodes what a pass needs from another stage, and what it gives."""
        return one.direction == "backward" and self._codec is not None

    def decoded(self, received: Tensor, one: Pass) -> Tensor:
        """The gradient that a backward pass needs, from what came."""
        assert self._codec is not None
        return self._codec.decode_backward(received, self._received(one))

    def encoded(self, gradient: Tensor, one: Pass) -> Tensor:
        """What a backward pass sends, given the gradient of the hidden states that its stage has received."""
        assert self._codec is not None
        return self._codec.encode_backward(gradient, self._message(one, self._stage.number))

    def _received(self, one: Pass) -> BackwardMessage:
        return self._message(one, self._stage.number + 1)

    def _message(self, one: Pass, sender: int) -> BackwardMessage:
        rows, tokens, hidden = self._shape(one)
        return BackwardMessage(
            self._step,
            one.micro_batch,
            sender,
            self._stages,
            (rows, tokens, hidden),
            in_epilogue(one.micro_batch, sender - 1, self._stages, len(self._batches)),
            self._seed,
            self._replica,
            self._batches[one.micro_batch]["input_ids"].device,
        )

    def _shape(self, one: Pass) -> tuple[int, int, int]:
        rows, tokens = self._batches[one.micro_batch]["input_ids"].shape
        return rows, tokens, self._stage.hidden_size
