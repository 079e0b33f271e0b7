"""What a warm-up may change, kept aside and put back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from gradwire.codecs.interface import Codec


class Snapshot:
    """Model buffers and codec state; parameters and optimizer are not touched by a warm-up."""

    def __init__(self, model: nn.Module, codecs: Mapping[int, Codec]) -> None:
        self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._codecs: dict[int, dict[str, Tensor]] = {
            rank: {key: value.clone() for key, value in codec.state_dict().items()}
            for rank, codec in codecs.items()
        }

    def restore_buffers(self, model: nn.Module) -> None:
        for name, buffer in model.named_buffers():
            buffer.copy_(self._buffers[name])

    def restore(self, model: nn.Module, codecs: Mapping[int, Codec]) -> None:
        self.restore_buffers(model)
        for rank, codec in codecs.items():
            codec.load_state_dict(self._codecs[rank])
