"""The codec of Optimus-CC (Song et al., ASPLOS 2023) for the two kinds of messages that it compresses.

Selective stage compression: PowerSGD for the gradients of the first stages alone. The last stage is the first
to end its backward passes, and synchronizes while those before it still compute. What the first one
synchronizes nothing hides.

Compressed backpropagation: gradients of hidden states at low rank, see `messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from gradwire.codecs.backward import BackwardMessage
from gradwire.codecs.interface import Round
from gradwire.codecs.optimus_cc.messages import LowRankMessages, decoded
from gradwire.codecs.options.low_rank import OptimusCCOptions, Orthogonalization
from gradwire.codecs.powersgd import PowerSGD, effective_rank
from gradwire.codecs.traits import About

PREFIX = "backward/"
"""Begins the keys under which the state of the messages is saved."""

FLOAT_BYTES = 4


@dataclass
class OptimusCC(OptimusCCOptions, PowerSGD):
    """PowerSGD for the first stages' gradients, the others in float32; low rank for those of hidden states.

    The fields of PowerSGD apply to both but for `rank` and `feedback`, which are about the gradients of
    parameters. Without a pipeline there is one stage, which is compressed, and it sends nothing back.
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

    def supports_stages(self, stages: int, *, refines: bool = False) -> str | None:
        if self.stages is not None and self.stages > stages:
            there = f"parallel.stages={stages}" if stages > 1 else "the one stage of a run without a pipeline"
            return (
                f"codec.stages={self.stages} exceeds {there}; leave codec.stages out, or use {stages} or less"
            )
        if stages == 1 and self.backward in ("all", "epilogue"):
            return (
                f"codec.backward={self.backward} has no effect on one stage, which sends no other anything; "
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

    def end_step(self, step: int) -> Mapping[str, float]:
        self._messages.end_step()
        return super().end_step(step)

    def skip_step(self, step: int) -> Mapping[str, float]:
        self._messages.skip_step()
        return super().skip_step(step)

    def state_dict(self) -> dict[str, Tensor]:
        messages = {f"{PREFIX}{key}": value for key, value in self._messages.state_dict().items()}
        return super().state_dict() | messages

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything by what `state_dict` gave. Raises ValueError for other keys."""
        messages = {key for key in state if key.startswith(PREFIX)}
        super().load_state_dict({key: value for key, value in state.items() if key not in messages})
        self._messages.load_state_dict({key.removeprefix(PREFIX): state[key] for key in messages})
