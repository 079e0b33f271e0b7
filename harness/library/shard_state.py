"""What a sharded synchronizer remembers as tensors, which `torch.save` and safetensors can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.saved import REMEMBERED_BY, RESULTS, check_finite, check_remembered
from gradwire.harness.runtime.fields import shown

VERSION = 1

_STEP, _ABOUT, _CODEC, _WHOLE, _SENT = "step", "about", "codec/", "weights/", "sent/"
_REPLICAS = "replicas/"

WEIGHTS = ("weights", "weight_bits", "weight_group", "ranks_per_node")
"""Settings that change results, beside those of every synchronizer."""


@dataclass(frozen=True)
class SavedShards:
    """One rank's state between two steps. By module number: `weights`, (shard,), its slice of the weights
    that all ranks hold, and `sent`, (shard,), its main weights as they were sent last. `replicas`: what the
    codec between replicas of shards remembers."""

    step: int
    codec: dict[str, Tensor]
    weights: dict[int, Tensor]
    sent: dict[int, Tensor]
    replicas: dict[str, Tensor]

    def pack(self, rank: int, description: Statement) -> dict[str, Tensor]:
        """Packs the state into CPU tensors that share no memory with anything."""
        about = {"version": VERSION, "rank": rank, "settings": dict(description)}
        text = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        own = {f"{_CODEC}{key}": value for key, value in self.codec.items()}
        own |= {f"{_REPLICAS}{key}": value for key, value in self.replicas.items()}
        own |= {f"{_WHOLE}{number}": value for number, value in self.weights.items()}
        own |= {f"{_SENT}{number}": value for number, value in self.sent.items()}
        copies = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in own.items()}
        return {_STEP: torch.tensor(self.step, device="cpu"), _ABOUT: text, **copies}

    @classmethod
    def unpack(
        cls, state: Mapping[str, Tensor], rank: int, description: Statement, strict: bool
    ) -> SavedShards:
        """Unpacks the state for `rank` and its settings. Raises ValueError for anything else."""
        about = _about(state)
        if about["rank"] != rank:
            raise ValueError(f"rank {rank} was given the state of rank {about['rank']}; each has its own")
        _compare(about["settings"], description, strict)
        damaged = [key for key in state if not isinstance(state[key], Tensor)]
        if damaged:
            raise ValueError(f"the state is damaged: its {damaged[0]} is no tensor")
        parts = {
            kind: {key.removeprefix(kind): value for key, value in state.items() if key.startswith(kind)}
            for kind in (_CODEC, _WHOLE, _SENT, _REPLICAS)
        }
        return cls(
            int(state[_STEP]),
            parts[_CODEC],
            {int(number): value for number, value in parts[_WHOLE].items()},
            {int(number): value for number, value in parts[_SENT].items()},
            parts[_REPLICAS],
        )

    def check_finite(self) -> None:
        """Raises ValueError, naming the entry, if something that a pass adds to is not finite."""
        check_remembered(self.codec)
        check_remembered(self.replicas)
        check_finite({f"{_WHOLE}{number}": value for number, value in self.weights.items()})
        check_finite({f"{_SENT}{number}": value for number, value in self.sent.items()})

    def common(self) -> dict[str, str]:
        """What the states of all ranks have in common."""
        return {"step": str(self.step), "weights": str(sorted(self.weights)), "sent": str(sorted(self.sent))}


def _about(state: Mapping[str, Tensor]) -> dict[str, Any]:
    if not isinstance(state, Mapping) or not all(
        isinstance(state.get(key), Tensor) for key in (_STEP, _ABOUT)
    ):
        raise ValueError(
            f"{shown(state)} is not a state of shard_hooks(); give what state_dict() returned, e.g. "
            "torch.load(path, weights_only=True)"
        )
    try:
        about: dict[str, Any] = json.loads(bytes(state[_ABOUT].tolist()))
        version = about["version"]
        if version == VERSION and not ({"modules"} <= about["settings"].keys() and int(about["rank"]) >= 0):
            raise TypeError("settings are names and words")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("the state is damaged: what it says about itself cannot be read") from None
    if version != VERSION:
        raise ValueError(f"the state has version {version}, this is version {VERSION} of its format")
    return about


def _compare(saved: Statement, own: Statement, strict: bool) -> None:
    """Raises ValueError for another model's state and, if `strict`, for one with other settings."""
    if saved["modules"] != own["modules"]:
        raise ValueError(
            f"the state is another model's: it was saved with {saved['modules']}, this one has "
            f"{own['modules']}; shard the model as it was"
        )
    keys = [
        key for key in dict.fromkeys([*own, *saved]) if key in (*RESULTS, *WEIGHTS) or key[:6] == "codec."
    ]
    different = [key for key in keys if saved.get(key) != own.get(key)]
    if strict and different:
        key = different[0]
        loosely = "" if key in REMEMBERED_BY else ", or load with strict=False"
        raise ValueError(
            f"the state was saved with {key}={saved.get(key)}, this is {key}={own.get(key)}; give "
            f"{key}={saved.get(key)}{loosely}"
        )
