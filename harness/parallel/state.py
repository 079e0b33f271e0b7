"""Data parallelism's parts of a checkpoint: model and optimizer once, the codec of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from gradwire.codecs.interface import Codec
from gradwire.harness.parallel.interface import ReadPart


class Snapshot:
    """Model buffers and codec state before a warm-up, which does not change parameters and optimizer."""

    def __init__(self, model: nn.Module, codecs: Mapping[int, Codec]) -> None:
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._codecs: dict[int, dict[str, Tensor]] = {
            rank: {key: value.clone() for key, value in codec.state_dict().items()}
            for rank, codec in codecs.items()
        }

    def restore(self, model: nn.Module, codecs: Mapping[int, Codec]) -> None:
        for name, buffer in model.named_buffers():
            buffer.copy_(self.buffers[name])
        for rank, codec in codecs.items():
            codec.load_state_dict(self._codecs[rank])


MODEL, OPTIMIZER = "model", "optimizer"


CODEC_PART = "codec-rank"


def codec_part(rank: int) -> str:
    """The name of the part that holds the codec state of `rank`."""
    return f"{CODEC_PART}{rank}"


class KeepsMoments(Protocol):
    """An optimizer wrapper whose moments are saved in checkpoints under `<field>/<parameter name>`."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


def replicated_state(model: nn.Module, updater: KeepsMoments) -> dict[str, dict[str, Tensor]]:
    """The parts that are the same on all replicas; one of them writes them."""
    return {MODEL: model_tensors(model), OPTIMIZER: updater.state_dict()}


def codec_state(codecs: Mapping[int, Codec]) -> dict[str, dict[str, Tensor]]:
    """The state of each rank's codec."""
    return {codec_part(rank): codec.state_dict() for rank, codec in codecs.items()}


def load_state(read: ReadPart, model: nn.Module, updater: KeepsMoments, codecs: Mapping[int, Codec]) -> None:
    """Loads what `replicated_state` and `codec_state` returned. Raises ValueError if it belongs to another
    model."""
    load_model(read, model)
    updater.load_state_dict(read(OPTIMIZER))
    for rank, codec in codecs.items():
        codec.load_state_dict(read(codec_part(rank)))


def load_model(read: ReadPart, model: nn.Module, part: str = MODEL) -> None:
    """Loads parameters and buffers. Raises ValueError if they are another model's."""
    own, saved = model_tensors(model), read(part)
    if own.keys() != saved.keys():
        odd = sorted(own.keys() ^ saved.keys())
        raise ValueError(
            f"the checkpoint belongs to another model: only one of them has {', '.join(odd[:3])}"
        )
    odd = [name for name, tensor in own.items() if _form(tensor) != _form(saved[name])]
    if odd:
        forms = f"{_form(saved[odd[0]])} there, {_form(own[odd[0]])} here"
        raise ValueError(f"the checkpoint belongs to another model: {odd[0]} is {forms}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())
