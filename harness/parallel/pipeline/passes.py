"""One rank's passes of a step, and its messages to neighbouring stages: hidden states and, encoded by codecs,
their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from gradwire.codecs.backward import BackwardMessage, CompressesBackward
from gradwire.codecs.interface import Codec
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.comm.world.interface import RankStep, Started
from gradwire.harness.models.stages import Stage
from gradwire.harness.parallel.accumulation import Accumulation, Hooks
from gradwire.harness.parallel.interface import Batch
from gradwire.harness.parallel.passes import seed_dropout, weighted
from gradwire.harness.parallel.pipeline.schedule import Action, Pass, destination, in_epilogue, source
from gradwire.harness.runtime.heartbeat import beat
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.timing.trace.step import DECODE, ENCODE, stage_pass


@dataclass(frozen=True)
class StageStep:
    """One of a model's `stages` in one step: the micro-batches of `replica`, one of `replicas`."""

    stage: Stage
    stages: int
    replica: int
    replicas: int
    batches: Sequence[Batch]
    step: int
    seed: int


class StageLinks:
    """One rank's messages in one step: those that it receives before passes and sends after them.

    Hidden states travel in float32; so do their gradients, unless the rank's codec encodes them.
    """

    def __init__(self, codec: Codec, own: StageStep) -> None:
        inner = innermost(codec)
        self._codec = inner if isinstance(inner, CompressesBackward) else None
        self._own = own

    def buffer(self, one: Pass) -> Tensor:
        """A buffer for a pass's input from another stage."""
        shape, device = self._shape(one), self._own.batches[one.micro_batch]["input_ids"].device
        if not self.encodes(one):
            return torch.empty(shape, device=device)
        assert self._codec is not None
        num_bytes = self._codec.backward_bytes(self._received(one))
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def encodes(self, one: Pass) -> bool:
        """True if the codec encodes the gradients that a pass receives from another stage and sends."""
        return one.direction == "backward" and self._codec is not None

    def decoded(self, received: Tensor, one: Pass) -> Tensor:
        """The gradient that a backward pass needs, decoded from the received message."""
        assert self._codec is not None
        return self._codec.decode_backward(received, self._received(one))

    def encoded(self, gradient: Tensor, one: Pass) -> Tensor:
        """The message that a backward pass sends: the gradient of its stage's input hidden states,
        encoded.
        """
        assert self._codec is not None
        return self._codec.encode_backward(gradient, self._message(one, self._own.stage.number))

    def _received(self, one: Pass) -> BackwardMessage:
        return self._message(one, self._own.stage.number + 1)

    def _message(self, one: Pass, sender: int) -> BackwardMessage:
        own = self._own
        return BackwardMessage(
            own.step,
            one.micro_batch,
            sender,
            own.stages,
            self._shape(one),
            in_epilogue(one.micro_batch, sender - 1, own.stages, len(own.batches)),
            own.seed,
            own.replica,
            own.batches[one.micro_batch]["input_ids"].device,
        )

    def _shape(self, one: Pass) -> tuple[int, int, int]:
        rows, tokens = self._own.batches[one.micro_batch]["input_ids"].shape
        return rows, tokens, self._own.stage.hidden_size


class StagePasses:
    """The passes of one rank's stage in one step.

    `forward` computes the stage, in mixed precision if requested. Dropout depends on `seed` and on
    (micro-batch, replica, stage).
    """

    def __init__(
        self,
        own: StageStep,
        forward: nn.Module,
        accelerator: Accelerator,
        rank_step: RankStep,
        links: StageLinks,
    ) -> None:
        self._own, self._stage, self._forward = own, own.stage, forward
        self._accelerator, self._rank_step, self._links = accelerator, rank_step, links
        self._inputs: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._results: dict[Pass, Tensor] = {}
        """Results still to be sent."""
        self._coming: dict[Pass, Started[Tensor]] = {}
        self.loss = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        """The mean loss of the micro-batches by their weights, () float64, in the last stage; 0 in the
        others."""

    async def run(self, actions: Sequence[Action], accumulation: Accumulation, hooks: Hooks) -> None:
        """Executes a step's `actions`, and adds the gradients to `accumulation`."""
        sent: list[Started[None]] = []
        for kind, one in actions:
            if kind == "receive":
                self._coming[one] = self._rank_step.receive(
                    self._links.buffer(one), self._rank(source(one, self._stage.number, self._own.stages))
                )
            elif kind == "send":
                to = self._rank(destination(one, self._stage.number, self._own.stages))
                sent.append(self._rank_step.send(self._results.pop(one), to, is_own=True))
            else:
                given = await self._coming.pop(one) if one in self._coming else None
                beat()
                if given is not None and self._links.encodes(one):
                    with self._rank_step.compute(f"{DECODE} {one.micro_batch}"):
                        given = self._links.decoded(given, one)
                with self._rank_step.compute(stage_pass(*one)):
                    if one.direction == "forward":
                        self._compute_forward(one, given)
                    else:
                        with hooks.handing(accumulation.receive, accumulation.sums):
                            self._compute_backward(one, given)
                if one in self._results and self._links.encodes(one):
                    with self._rank_step.compute(f"{ENCODE} {one.micro_batch}"):
                        self._results[one] = self._links.encoded(self._results[one], one)
        accumulation.finish()
        for each in sent:
            await each

    def _rank(self, stage: int | None) -> int:
        """The rank that holds a stage of this replica."""
        assert stage is not None
        return stage * self._own.replicas + self._own.replica

    def _compute_forward(self, one: Pass, hidden: Tensor | None) -> None:
        own, number = self._own, one.micro_batch
        if hidden is not None:
            self._inputs[number] = hidden.requires_grad_()
        seed = derive_seed(own.seed, "dropout", own.step, number, own.replica, own.stage.number)
        seed_dropout(seed, self._accelerator.device)
        output: Any = self._forward(hidden, **own.batches[number])
        if self._stage.is_last:
            loss = weighted(output.loss, own.batches[number]) / len(own.batches)
            self.loss += loss.detach()
            self._outputs[number] = loss
        else:
            self._outputs[number] = output
            self._results[one] = output.detach()

    def _compute_backward(self, one: Pass, gradient: Tensor | None) -> None:
        output = self._outputs.pop(one.micro_batch)
        if gradient is None:
            self._accelerator.backward(output)
        else:
            torch.autograd.backward(output, gradient)
        if not self._stage.is_first:
            made = self._inputs.pop(one.micro_batch).grad
            assert made is not None
            self._results[one] = made
