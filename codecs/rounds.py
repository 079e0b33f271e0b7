"""A round and its context: the bucket, the step, the rank, and the observations of earlier steps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key, stream_key

Decision = Mapping[str, float | Sequence[float]]
"""The decision of all ranks for a step, by name: numbers, and lists of numbers. See `adaptation`."""


class Observation(NamedTuple):
    """Times of one rank's step: the bytes it sent in one phase of one bucket, from the phase's first message
    to its last, in seconds since the step began.

    The phases are those that bytes are counted under, and `compute`, the computation until the bucket was
    ready. In a pipeline there is also `backward`: the backward pass of a micro-batch through this rank's
    stage, whose `bucket` is the number of the micro-batch. With blocks there are `forward` and `backward` of
    each block, whose `bucket` is the block's number, and `step` with bucket −1: from the rank's first
    computation or wait to its last.
    """

    bucket: int
    phase: str
    num_bytes: int
    start: float
    end: float


@dataclass(frozen=True)
class Layout:
    """One bucket: the parameters in the flat buffer and their places. Frozen after warm-up.

    A parameter's elements are in the order of its shape, row by row, whatever its strides in the model are.
    `offsets` and `numel` count elements. `uid` identifies the bucket by its parameters' names and is part of
    every random key, so randomness does not depend on the order in which buckets arrive.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    numel: int
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def uid(self) -> int:
        """31-bit hash of the parameter names."""
        digest = hashlib.sha256("\n".join(self.names).encode()).digest()
        return int.from_bytes(digest[:4], "little") & 0x7FFF_FFFF

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """The coordinates of each parameter, in the order of `names`."""
        ends = zip(self.offsets, map(math.prod, self.shapes), strict=True)
        return tuple(slice(offset, offset + length) for offset, length in ends)

    @property
    def key(self) -> str:
        """The key of this bucket in a codec's state that belongs to the bucket as a whole, not to a
        parameter."""
        return f"bucket-{self.uid:08x}"

    @classmethod
    def flat(cls, numel: int, name: str = "flat", device: torch.device | str = "cpu") -> Layout:
        """A layout of one anonymous vector, for tests, replay and benchmarks."""
        return cls((name,), ((numel,),), (0,), numel, device=torch.device(device))


@dataclass(frozen=True)
class Capture:
    """The context of a round that is captured in a CUDA graph: later steps replay its kernels on the same
    memory.

    `key_place` (2,) int32, on the device, holds the key of the step that is being replayed. Tensors that the
    codec made before the capture and its kernels use go into `kept`, which lives as long as the graph;
    tensors made within the round live that long anyway. The functions in `before_launch` run on the host
    before each replay, on its stream: they note which state the step changes, or write a step's numbers.
    Those of a codec that `Adapts` ask `decision` for the decision that the step follows.
    """

    key_place: Tensor
    kept: list[object] = field(default_factory=list)
    before_launch: list[Callable[[], None]] = field(default_factory=list)
    decision: Callable[[], Decision] = dict


@dataclass(frozen=True)
class Round:
    """One synchronization of one bucket; `bucket` is its 0-based index in the step.

    `decision` is the one that a codec that `Adapts` follows in this step: the same on all ranks and in all
    buckets of the step, and empty for every other codec. `stage` is the 0-based index of the ranks' part of
    the model among `stages`, in the order of the layers.

    `capture` is set if the round is captured in a CUDA graph: see `Codec.refuses_capture`.
    """

    step: int
    layout: Layout
    rank: int
    size: int
    seed: int
    bucket: int = 0
    decision: Decision = field(default_factory=dict, compare=False)
    stage: int = 0
    stages: int = 1
    capture: Capture | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        """The key of the randomness that all ranks share in this round."""
        return stream_key(self.seed, self.step, self.layout.uid)

    @property
    def key_place(self) -> Tensor | None:
        """The key on the device, (2,) int32, which kernels read instead of `key`; None outside captures."""
        return None if self.capture is None else self.capture.key_place
