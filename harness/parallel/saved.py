"""A synchronizer's state as tensors: what `torch.save(…)` with weights alone and safetensors can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.describe import digest
from gradwire.harness.parallel.agreement import Statement
from gradwire.harness.parallel.reducer import Buckets

VERSION = 1

_STEP, _ABOUT, _CODEC = "step", "about", "codec/"

RESULTS = ("codec", "topology", "schedule", "seed", "pieces", "world size")
"""The settings, beside the codec's own, that change what is synchronized."""


@dataclass(frozen=True)
class SavedState:
    """One rank's state between two steps.

    `upcoming`: the buckets that the next backward pass has, None where it is the first; `last`: those of the
    latest one, None where there was none.
    """

    step: int
    description: Statement
    upcoming: Buckets | None
    last: Buckets | None
    codec: dict[str, Tensor]

    def pack(self, rank: int) -> dict[str, Tensor]:
        """As tensors on the CPU that share no memory with anything: `step`, `about` (JSON as bytes) and
        `codec/<key>`."""
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
        return {_STEP: torch.tensor(self.step), _ABOUT: text, **own}

    @classmethod
    def unpack(
        cls, state: Mapping[str, Tensor], rank: int, description: Statement, strict: bool
    ) -> SavedState:
        """The inverse, for `rank` and its settings. Raises ValueError for anything else."""
        about = _about(state)
        if about["rank"] != rank:
            raise ValueError(f"rank {rank} was given the state of rank {about['rank']}; each has its own")
        if strict:
            _compare(about["settings"], description)
        return cls(
            int(state[_STEP]),
            description,
            _buckets(about["upcoming"]),
            _buckets(about["last"]),
            {key.removeprefix(_CODEC): value for key, value in state.items() if key.startswith(_CODEC)},
        )

    def common(self) -> dict[str, str]:
        """What the states of all ranks have alike."""
        return {"step": str(self.step), "buckets": digest(repr((self.upcoming, self.last)))}


def _about(state: Mapping[str, Tensor]) -> dict[str, Any]:
    missing = [key for key in (_STEP, _ABOUT) if not isinstance(state.get(key), Tensor)]
    if missing:
        raise ValueError(f"this is no state of a synchronizer, it has no {' and no '.join(missing)}")
    try:
        about = json.loads(bytes(state[_ABOUT].tolist()))
        version = about["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("the state is damaged: what it says about itself cannot be read") from None
    if version != VERSION:
        raise ValueError(f"the state has version {version}, this is version {VERSION} of its format")
    found: dict[str, Any] = about
    return found


def _buckets(listed: Any) -> Buckets | None:
    return None if listed is None else tuple(tuple(map(str, names)) for names in listed)


def _compare(saved: Statement, own: Statement) -> None:
    keys = dict.fromkeys([*own, *saved])
    for key in keys:
        if (key in RESULTS or key.startswith("codec.")) and saved.get(key) != own.get(key):
            raise ValueError(
                f"the state was saved with {key}={saved.get(key)}, this is {key}={own.get(key)}; attach with "
                f"{key}={saved.get(key)}, or load with strict=False"
            )
