"""Optimus-CC (Song et al., ASPLOS 2023): gradients of the first stages and of hidden states at low rank.

A micro-batch's gradient of hidden states is a matrix M with a row for each token. One step of PowerSGD's
iteration, on this worker alone, gives P and Q, which are sent in its place, and M̂ = P Qᵀ. The error M − M̂
is added to the next message of the same sender, which belongs to another micro-batch. The sum of the weight
gradients then stays nearly the same to the extent that the hidden states of micro-batches are similar.

Selective stage compression: PowerSGD for the gradients of the first stages alone. The last stage is the first
to end its backward passes, so its synchronization overlaps with the computation of earlier stages. The
synchronization of the first stage overlaps with nothing.

Compressed backpropagation: gradients of hidden states at low rank, see `LowRankMessages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradwire.codecs.backward import BackwardMessage
from gradwire.codecs.interface import Round
from gradwire.codecs.options.reduced import OptimusCCOptions, Orthogonalization
from gradwire.codecs.powersgd import (
    ERROR,
    LARGEST_ERROR,
    START,
    PowerSGD,
    all_finite,
    effective_rank,
    next_start,
    orthonormal,
    projected,
    resized,
)
from gradwire.codecs.step_memory import PREFIX as NORM
from gradwire.codecs.step_memory import LatestNorms, StepMemory, bounded
from gradwire.codecs.traits import About


class LowRankMessages:
    """The messages of one sender, and the error that it carries from one message to the next."""

    def __init__(self, method: Orthogonalization, *, lazy_errors: bool, warm_start: bool) -> None:
        self._method, self._lazy_errors, self._warm_start = method, lazy_errors, warm_start
        self._starts = StepMemory[Tensor]()  # Qᵀ of the latest message, (rank, hidden size) float32
        self._errors = StepMemory[Tensor]()  # what is still to be sent, (rows, tokens, hidden size) float32
        self._norms = LatestNorms()  # of the latest gradients
        self.memories = {START: self._starts, ERROR: self._errors, NORM: self._norms}

    def encode(self, gradient: Tensor, rank: int, message: BackwardMessage) -> Tensor:
        """Pᵀ (rank, tokens) and Qᵀ (rank, hidden size), one after the other, as bytes; at rank 0 the gradient
        itself.

        The error of earlier messages is added first, so that a message of rank 0 delivers it completely. If a
        value is not finite, all of P and Q are NaN, and the stored error is unchanged.
        """
        given = self._with_error(gradient.contiguous(), rank, message)
        if not rank:
            if self._lazy_errors and message.link in self._errors:
                self._keep_error(torch.zeros_like(given), given, message)
            return given.view(-1).view(torch.uint8)
        matrix = given.view(message.matrix_shape)
        start = self._start(rank, message)
        left = projected(matrix, start, self._method)
        finite = all_finite(left)
        left = orthonormal(torch.where(finite, left, 0.0), self._method)
        right = left @ matrix
        sound = finite & all_finite(right)
        left, right = (torch.where(sound, factor, torch.nan) for factor in (left, right))
        delivered = (left.T @ right).view(message.shape)
        if self._lazy_errors:
            self._keep_error(given - delivered, delivered, message)
        if self._warm_start:
            self._starts[message.link] = next_start(start, right, delivered)
        return torch.cat([left.view(-1), right.view(-1)]).view(torch.uint8)

    def _with_error(self, gradient: Tensor, rank: int, message: BackwardMessage) -> Tensor:
        """A gradient plus the error of earlier messages, token by token."""
        error = self._errors.get(message.link)
        if not self._lazy_errors or (error is None and not rank):
            return gradient
        norm = self._norms.median(message.link, gradient.view(-1))
        if error is None:
            return gradient
        error = error.to(gradient.device)
        error = bounded(error.view(-1), norm, LARGEST_ERROR).view(error.shape)
        return gradient + _room(error, message)[_place(message)]

    def _start(self, rank: int, message: BackwardMessage) -> Tensor:
        kept = self._starts.get(message.link)
        kept = None if kept is None else kept.to(message.device)
        return resized(kept, rank, f"backward of {message.link}", message.shape[-1], message.round())

    def _keep_error(self, lost: Tensor, delivered: Tensor, message: BackwardMessage) -> None:
        """Store the error `lost` by a message, and keep the stored error of rows and tokens that it did not
        have. After a message that is not finite, keep the old error."""
        known = self._errors.get(message.link)
        before = torch.zeros_like(lost) if known is None else _room(known.to(lost.device), message)
        after = before.clone()
        after[_place(message)] = lost
        self._errors[message.link] = torch.where(all_finite(delivered), after, before)


def decoded(received: Tensor, rank: int, message: BackwardMessage) -> Tensor:
    """M̂, float32 of `message.shape`, decoded from the result of `encode`; a view of it at rank 0."""
    values = received.view(torch.float32)
    if not rank:
        return values.view(message.shape)
    tokens, hidden = message.matrix_shape
    left, right = torch.split(values, [rank * tokens, rank * hidden])
    return (left.view(rank, tokens).T @ right.view(rank, hidden)).view(message.shape)


def _room(error: Tensor, message: BackwardMessage) -> Tensor:
    """An error, padded with zeros where a message has more rows or tokens."""
    missing = [max(0, new - old) for old, new in zip(error.shape, message.shape, strict=True)]
    return pad(error, [0, 0, 0, missing[1], 0, missing[0]]) if any(missing) else error


def _place(message: BackwardMessage) -> tuple[slice, slice]:
    """The slice of a stored error that a message's rows and tokens occupy."""
    rows, tokens, _ = message.shape
    return slice(rows), slice(tokens)


PREFIX = "backward/"
"""Begins the keys under which the state of the messages is saved."""

FLOAT_BYTES = 4


@dataclass
class OptimusCC(OptimusCCOptions, PowerSGD):
    """PowerSGD for the first stages' gradients, the others in float32; gradients of hidden states at low
    rank.

    The fields of PowerSGD apply to both, except `rank` and `feedback`, which only apply to the gradients of
    parameters. Without a pipeline the single stage is compressed, and there are no gradients of hidden states
    to send.
    """

    about = About(
        group="low rank",
        source="Optimus-CC (Song et al., ASPLOS 2023)",
        wire_bits="as `powersgd` in the first `codec.stages` stages, 32 in the others",
        state="PowerSGD's; Q and the error of the latest gradient of hidden states",
        own_feedback=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._messages = LowRankMessages(
            cast(Orthogonalization, self.orthogonalization),
            lazy_errors=self.lazy_errors,
            warm_start=self.warm_start,
        )
        self.memories |= {f"{PREFIX}{kind}": memory for kind, memory in self._messages.memories.items()}

    def supports_stages(self, stages: int, *, refines: bool = False) -> str | None:
        if self.stages is not None and self.stages > stages:
            there = f"parallel.stages={stages}" if stages > 1 else "the one stage of a run without a pipeline"
            return (
                f"codec.stages={self.stages} exceeds {there}; leave codec.stages out, or use {stages} or less"
            )
        if stages == 1 and self.backward in ("all", "epilogue"):
            return (
                f"codec.backward={self.backward} has no effect with one stage, which sends to no other; "
                "leave codec.backward out, or use parallel=pipeline with parallel.stages=2 or more"
            )
        return None

    def _wanted_rank(self, name: str, this_round: Round) -> int:
        compressed = max(1, 3 * this_round.stages // 4) if self.stages is None else self.stages
        return super()._wanted_rank(name, this_round) if this_round.stage < compressed else 0

    def backward_bytes(self, message: BackwardMessage) -> int:
        rank = self._message_rank(message)
        return FLOAT_BYTES * (rank * sum(message.matrix_shape) if rank else message.numel)

    def encode_backward(self, gradient: Tensor, message: BackwardMessage) -> Tensor:
        return self._messages.encode(gradient, self._message_rank(message), message)

    def decode_backward(self, received: Tensor, message: BackwardMessage) -> Tensor:
        return decoded(received, self._message_rank(message), message)

    def _message_rank(self, message: BackwardMessage) -> int:
        """The rank of a message, 0 if it goes uncompressed."""
        compressed = {"all": True, "none": False, "epilogue": message.in_epilogue}
        if self._not_begun(message.step) or not compressed.get(self.backward, not message.in_epilogue):
            return 0
        return effective_rank(message.matrix_shape, self.backward_rank, self.min_compression_rate)
