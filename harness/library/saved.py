"""A synchronizer's state as tensors, which `torch.save` with weights only and safetensors can store: `step`,
`about` (JSON as bytes), and entries whose keys begin with their kind."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.describe import digest
from gradwire.codecs.powersgd import ERROR, START
from gradwire.codecs.step_memory import LATEST
from gradwire.codecs.step_memory import PREFIX as NORMS
from gradwire.codecs.wording import as_python
from gradwire.codecs.wrappers.feedback import PREFIX as RESIDUAL
from gradwire.harness.library.agreement import Statement
from gradwire.harness.library.ddp_internals import Buckets

VERSION = 1

_STEP, _ABOUT = "step", "about"
_CODEC, _REPLICAS, _WHOLE, _SENT = "codec/", "replicas/", "weights/", "sent/"
"""Key prefixes of the kinds of entries."""

_CAP = "DistributedDataParallel's bucket_bytes_cap"

_LIKE_A_GRADIENT = (RESIDUAL, ERROR)
"""Key prefixes of tensors with one element per coordinate of a parameter."""

RESULTS = ("codec", "topology", "schedule", "seed", "segments", "world size")
"""The settings, apart from the codec's own, that change the synchronized results."""

REMEMBERED_BY = ("codec", "codec.ef")
"""The settings that identify the codec whose state is saved; few other codecs can load it."""

WEIGHTS = ("weights", "weight_bits", "weight_group", "ranks_per_node")
"""The settings of `shard_hooks` that change results, besides those of every synchronizer."""


@dataclass(frozen=True)
class Saved(ABC):
    """One rank's state between two steps."""

    step: int

    @abstractmethod
    def codecs(self) -> Sequence[Mapping[str, Tensor]]:
        """The states of the codecs."""

    @abstractmethod
    def common(self) -> dict[str, str]:
        """The facts that must be the same in the states of all ranks."""


@dataclass(frozen=True)
class SavedState(Saved):
    """The state of `attach`. `upcoming` holds the buckets of the next backward pass, None if it is the first;
    `last` those of the latest one, None if there was none."""

    description: Statement
    upcoming: Buckets | None
    last: Buckets | None
    codec: dict[str, Tensor]

    def pack(self, rank: int) -> dict[str, Tensor]:
        """Packs the state into CPU tensors that share no memory with others."""
        about = {"settings": dict(self.description), "upcoming": self.upcoming, "last": self.last}
        return _packed(self.step, rank, about, {_CODEC: self.codec})

    @classmethod
    def unpack(
        cls, state: Mapping[str, Tensor], rank: int, description: Statement, strict: bool
    ) -> SavedState:
        """Unpacks the state for `rank` and its settings. Raises ValueError for any other state."""
        about = _about(state, rank, {"model", _CAP}, ("upcoming", "last"))
        saved = about["settings"]
        if strict:
            if saved["model"] != description["model"]:
                raise ValueError(
                    f"the state belongs to another model: it was saved with model={saved['model']}, this is "
                    f"model={description['model']}; load each state into the model it was saved from"
                )
            if saved[_CAP] != description[_CAP]:
                raise ValueError(
                    f"the state was saved with bucket_bytes_cap={saved[_CAP]}, this is {description[_CAP]}; "
                    "wrap the model with the bucket_cap_mb it was saved with"
                )
            _compare(saved, description, RESULTS)
        upcoming, last = _buckets(about["upcoming"]), _buckets(about["last"])
        return cls(int(state[_STEP]), description, upcoming, last, _entries(state, _CODEC))

    def codecs(self) -> Sequence[Mapping[str, Tensor]]:
        return [self.codec]

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raises ValueError unless the codec's state is finite, and its entries per parameter fit
        `parameters`, keyed by name."""
        for key, value in self.codec.items():
            kind, slash, name = key.partition("/")
            kind += slash
            if kind == START and not _fits(value, parameters.get(name)):
                raise ValueError(f"the state belongs to another model: its {key} is {list(value.shape)}")
            if kind not in (*_LIKE_A_GRADIENT, NORMS):
                continue  # the codec's own to check
            if name not in parameters:
                raise ValueError(f"the state belongs to another model: it has {key}, the model has no {name}")
            numel = LATEST if kind == NORMS else parameters[name].numel()
            if tuple(value.shape) != (numel,) or not value.is_floating_point():
                raise ValueError(
                    f"the state belongs to another model: its {key} is {value.dtype}{list(value.shape)}, "
                    f"this model's is torch.float32[{numel}]"
                )
        _check_remembered(self.codec)

    def common(self) -> dict[str, str]:
        return {"step": str(self.step), "buckets": digest(repr((self.upcoming, self.last)))}


@dataclass(frozen=True)
class SavedShards(Saved):
    """The state of `shard_hooks`. By module number: `weights`, (shard,), its slice of the weights that all
    ranks hold, and `sent`, (shard,), its main weights as last sent. `replicas` holds the state of the codec
    between replicas of shards."""

    codec: dict[str, Tensor]
    weights: dict[int, Tensor]
    sent: dict[int, Tensor]
    replicas: dict[str, Tensor]

    def pack(self, rank: int, description: Statement) -> dict[str, Tensor]:
        """Packs the state into CPU tensors that share no memory with others."""
        entries: dict[str, Mapping[Any, Tensor]] = {_CODEC: self.codec, _REPLICAS: self.replicas}
        entries |= {_WHOLE: self.weights, _SENT: self.sent}
        return _packed(self.step, rank, {"settings": dict(description)}, entries)

    @classmethod
    def unpack(
        cls, state: Mapping[str, Tensor], rank: int, description: Statement, strict: bool
    ) -> SavedShards:
        """Unpacks the state for `rank` and its settings. Raises ValueError for any other state."""
        saved = _about(state, rank, {"modules"})["settings"]
        if saved["modules"] != description["modules"]:
            raise ValueError(
                f"the state belongs to another model: it was saved with {saved['modules']}, this one has "
                f"{description['modules']}; shard the model as it was"
            )
        if strict:
            _compare(saved, description, (*RESULTS, *WEIGHTS))
        weights, sent = (
            {int(number): value for number, value in _entries(state, kind).items()}
            for kind in (_WHOLE, _SENT)
        )
        codec, replicas = _entries(state, _CODEC), _entries(state, _REPLICAS)
        return cls(int(state[_STEP]), codec, weights, sent, replicas)

    def codecs(self) -> Sequence[Mapping[str, Tensor]]:
        return [self.codec, self.replicas]

    def check(self) -> None:
        """Raises ValueError, naming the entry, if a value that later passes add to is not finite."""
        _check_remembered(self.codec)
        _check_remembered(self.replicas)
        _check_finite({f"{_WHOLE}{number}": value for number, value in self.weights.items()})
        _check_finite({f"{_SENT}{number}": value for number, value in self.sent.items()})

    def common(self) -> dict[str, str]:
        return {"step": str(self.step), "weights": str(sorted(self.weights)), "sent": str(sorted(self.sent))}


def _packed(
    step: int, rank: int, about: Mapping[str, Any], entries: Mapping[str, Mapping[Any, Tensor]]
) -> dict[str, Tensor]:
    text = json.dumps({"version": VERSION, "rank": rank, **about}).encode()
    own = {
        f"{kind}{key}": value.detach().to("cpu", copy=True).contiguous()
        for kind, values in entries.items()
        for key, value in values.items()
    }
    known = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return {_STEP: torch.tensor(step, device="cpu"), _ABOUT: known, **own}


def _entries(state: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {key.removeprefix(kind): value for key, value in state.items() if key.startswith(kind)}


def _check_remembered(codec: Mapping[str, Tensor]) -> None:
    """Raises ValueError if a codec's residuals or start values are not finite, because no later mean would be
    finite."""
    _check_finite({key: codec[key] for key in codec if key.startswith((*_LIKE_A_GRADIENT, START))})


def _check_finite(entries: Mapping[str, Tensor]) -> None:
    """Raises ValueError, naming the entry, if one is not finite."""
    for key, value in entries.items():
        if not bool(value.isfinite().all()):
            found = "NaN" if bool(value.isnan().any()) else "infinity"
            raise ValueError(
                f"the state is damaged: its {key} holds {found}; load one that was saved while all numbers "
                "were finite"
            )


def _fits(start: Tensor, parameter: Tensor | None) -> bool:
    """True if PowerSGD's Qᵀ, (rank, columns), has the shape for this parameter as a matrix."""
    return parameter is not None and start.dim() == 2 and parameter.numel() % start.shape[1] == 0


def _about(
    state: Mapping[str, Tensor], rank: int, settings: set[str], buckets: Sequence[str] = ()
) -> dict[str, Any]:
    """The facts in a state of `rank`, with at least these `settings`, and lists of names in `buckets`. Raises
    ValueError for another rank's state."""
    if not isinstance(state, Mapping):
        raise ValueError(
            f"{as_python(state)} is not a state of a synchronizer; give the result of state_dict(), e.g. "
            "torch.load(path, weights_only=True)"
        )
    missing = [key for key in (_STEP, _ABOUT) if not isinstance(state.get(key), Tensor)]
    if missing:
        raise ValueError(f"this is not a state of a synchronizer, it has no {' and no '.join(missing)}")
    try:
        about: dict[str, Any] = json.loads(bytes(state[_ABOUT].tolist()))
        version = about["version"]
        if version == VERSION:
            if not isinstance(about["settings"], dict) or not settings <= about["settings"].keys():
                raise TypeError("settings are names and words")
            for listed in (about[key] for key in buckets):
                if listed is not None and not all(isinstance(names, list) and names for names in listed):
                    raise TypeError("buckets are lists of names")
            int(about["rank"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("the state is damaged: its description cannot be read") from None
    if version != VERSION:
        raise ValueError(
            f"the state has version {version} of the format, and this program reads version {VERSION}"
        )
    if about["rank"] != rank:
        raise ValueError(f"rank {rank} was given the state of rank {about['rank']}; each has its own")
    damaged = [key for key in state if not isinstance(state[key], Tensor)]
    if damaged:
        raise ValueError(f"the state is damaged: its {damaged[0]} is not a tensor")
    return about


def _buckets(listed: Any) -> Buckets | None:
    return None if listed is None else tuple(tuple(map(str, names)) for names in listed)


def _compare(saved: Statement, own: Statement, settings: Sequence[str]) -> None:
    """Raises ValueError for a state that was saved with other values of these settings, or for another
    codec.
    """
    for key in dict.fromkeys([*own, *saved]):
        if (key in settings or key.startswith("codec.")) and saved.get(key) != own.get(key):
            loosely = "" if key in REMEMBERED_BY else ", or load with strict=False"
            raise ValueError(
                f"the state was saved with {key}={saved.get(key)}, this is {key}={own.get(key)}; attach with "
                f"{key}={saved.get(key)}{loosely}"
            )
