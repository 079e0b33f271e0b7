"""A synchronizer's state as tensors, which `torch.save` with weights only and safetensors can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.describe import digest
from gradwire.codecs.powersgd import ERROR, START
from gradwire.codecs.wrappers.feedback import PREFIX as RESIDUAL
from gradwire.codecs.wrappers.residuals import LATEST
from gradwire.codecs.wrappers.residuals import PREFIX as NORMS
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.options import RENAMED
from gradwire.harness.library.reducer import Buckets
from gradwire.harness.runtime.fields import shown

VERSION = 1

_STEP, _ABOUT, _CODEC = "step", "about", "codec/"

_CAP = "DistributedDataParallel's bucket_bytes_cap"

_LIKE_A_GRADIENT = (RESIDUAL, ERROR)
"""The beginnings of the keys of tensors with one element per coordinate of a parameter."""

RESULTS = ("codec", "topology", "schedule", "seed", "segments", "world size")
"""The settings, besides the codec's own, that change what is synchronized."""

REMEMBERED_BY = ("codec", "codec.ef")
"""The settings that say whose memory the state holds, which few others can load."""


@dataclass(frozen=True)
class SavedState:
    """One rank's state between two steps.

    `upcoming`: the buckets of the next backward pass, None if it is the first. `last`: the buckets of the
    latest one, None if there was none.
    """

    step: int
    description: Statement
    upcoming: Buckets | None
    last: Buckets | None
    codec: dict[str, Tensor]

    def pack(self, rank: int) -> dict[str, Tensor]:
        """Packs the state into CPU tensors that share no memory with anything: `step`, `about` (JSON as
        bytes) and `codec/<key>`."""
        about = {
            "version": VERSION,
            "rank": rank,
            "settings": dict(self.description),
            "upcoming": self.upcoming,
            "last": self.last,
        }
        text = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        own = {
            f"{_CODEC}{key}": value.detach().to("cpu", copy=True).contiguous()
            for key, value in self.codec.items()
        }
        return {_STEP: torch.tensor(self.step, device="cpu"), _ABOUT: text, **own}

    @classmethod
    def unpack(
        cls, state: Mapping[str, Tensor], rank: int, description: Statement, strict: bool
    ) -> SavedState:
        """Unpacks the state for `rank` and its settings. Raises ValueError for anything else."""
        about = _about(state)
        if about["rank"] != rank:
            raise ValueError(f"rank {rank} was given the state of rank {about['rank']}; each has its own")
        if strict:
            settings = {RENAMED.get(name, name): value for name, value in about["settings"].items()}
            _compare(settings, description)
        damaged = [key for key in state if not isinstance(state[key], Tensor)]
        if damaged:
            raise ValueError(f"the state is damaged: its {damaged[0]} is no tensor")
        return cls(
            int(state[_STEP]),
            description,
            _buckets(about["upcoming"]),
            _buckets(about["last"]),
            {key.removeprefix(_CODEC): value for key, value in state.items() if key.startswith(_CODEC)},
        )

    def check_shapes(self, parameters: Mapping[str, Tensor]) -> None:
        """Raises ValueError unless what the codec remembers by parameter fits these, keyed by name."""
        for key, value in self.codec.items():
            kind, slash, name = key.partition("/")
            kind += slash
            if kind == START and not _fits(value, parameters.get(name)):
                raise ValueError(f"the state is another model's: its {key} is {list(value.shape)}")
            if kind not in (*_LIKE_A_GRADIENT, NORMS):
                continue  # the codec's own to check
            if name not in parameters:
                raise ValueError(f"the state is another model's: it has {key}, the model has no {name}")
            numel = LATEST if kind == NORMS else parameters[name].numel()
            if tuple(value.shape) != (numel,) or not value.is_floating_point():
                raise ValueError(
                    f"the state is another model's: its {key} is {value.dtype}{list(value.shape)}, this "
                    f"model's is torch.float32[{numel}]"
                )

    def common(self) -> dict[str, str]:
        """What the states of all ranks have in common."""
        return {"step": str(self.step), "buckets": digest(repr((self.upcoming, self.last)))}


def check_remembered(codec: Mapping[str, Tensor]) -> None:
    """Raises ValueError if what a codec owes, or begins with, is not finite: no mean would be any more."""
    check_finite({key: codec[key] for key in codec if key.startswith((*_LIKE_A_GRADIENT, START))})


def check_finite(entries: Mapping[str, Tensor]) -> None:
    """Raises ValueError, naming the entry, if one is not finite."""
    for key, value in entries.items():
        if not bool(value.isfinite().all()):
            found = "NaN" if bool(value.isnan().any()) else "infinity"
            raise ValueError(
                f"the state is damaged: its {key} holds {found}; load one that was saved while all numbers "
                "were finite"
            )


def _fits(start: Tensor, parameter: Tensor | None) -> bool:
    """Whether PowerSGD's Qᵀ, (rank, columns), can belong to this parameter as a matrix."""
    return parameter is not None and start.dim() == 2 and parameter.numel() % start.shape[1] == 0


def _about(state: Mapping[str, Tensor]) -> dict[str, Any]:
    if not isinstance(state, Mapping):
        raise ValueError(
            f"{shown(state)} is not a state of a synchronizer; give what state_dict() returned, e.g. "
            "torch.load(path, weights_only=True)"
        )
    missing = [key for key in (_STEP, _ABOUT) if not isinstance(state.get(key), Tensor)]
    if missing:
        raise ValueError(f"this is not a state of a synchronizer, it has no {' and no '.join(missing)}")
    try:
        about = json.loads(bytes(state[_ABOUT].tolist()))
        version = about["version"]
        if version == VERSION:
            _check_form(about)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("the state is damaged: what it says about itself cannot be read") from None
    if version != VERSION:
        raise ValueError(f"the state has version {version}, this is version {VERSION} of its format")
    found: dict[str, Any] = about
    return found


def _check_form(about: Mapping[str, Any]) -> None:
    settings = about["settings"]
    if not isinstance(settings, dict) or not {"model", _CAP} <= settings.keys():
        raise TypeError("settings are names and words")
    for listed in (about["upcoming"], about["last"]):
        if listed is not None and not all(isinstance(names, list) and names for names in listed):
            raise TypeError("buckets are lists of names")
    int(about["rank"])


def _buckets(listed: Any) -> Buckets | None:
    return None if listed is None else tuple(tuple(map(str, names)) for names in listed)


def _compare(saved: Statement, own: Statement) -> None:
    if saved["model"] != own["model"]:
        raise ValueError(
            f"the state is another model's: it was saved with model={saved['model']}, this is "
            f"model={own['model']}; load each state into the model it was saved from"
        )
    if saved[_CAP] != own[_CAP]:
        raise ValueError(
            f"the state was saved with bucket_bytes_cap={saved[_CAP]}, this is {own[_CAP]}; wrap the model "
            "with the bucket_cap_mb it was saved with"
        )
    keys = dict.fromkeys([*own, *saved])
    for key in keys:
        if (key in RESULTS or key.startswith("codec.")) and saved.get(key) != own.get(key):
            loosely = "" if key in REMEMBERED_BY else ", or load with strict=False"
            raise ValueError(
                f"the state was saved with {key}={saved.get(key)}, this is {key}={own.get(key)}; attach with "
                f"{key}={saved.get(key)}{loosely}"
            )
