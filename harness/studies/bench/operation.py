"""An operation as the benchmark sees it: tensors, a call, and which bytes the call has to move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class Case:
    """An operation on one set of tensors; `run` can be called again and again.

    `reads` and `writes` are what an implementation with no intermediate results in memory has to touch: a
    tensor that is changed in place is in both.
    """

    run: Callable[[], object]
    reads: Sequence[Tensor]
    writes: Sequence[Tensor]

    @cached_property
    def bytes_read(self) -> int:
        return sum(tensor.nbytes for tensor in self.reads)

    @cached_property
    def bytes_written(self) -> int:
        return sum(tensor.nbytes for tensor in self.writes)


@dataclass(frozen=True)
class Peer:
    """Somebody else's implementation of something comparable; it need not be installed."""

    name: str
    make: Callable[[Tensor], Callable[[], object] | None]
    """From the bucket to a call that can be repeated; None where the peer is missing or cannot run."""


@dataclass(frozen=True)
class Operation:
    """What is measured: `make` gives the case for a bucket, (numel,) float32 or bfloat16 on any device."""

    name: str  # "<family>.<operation>[.<bits>]"
    kernels: tuple[str, ...]  # compiled ones that it spends its time in
    make: Callable[[Tensor], Case]
    peers: tuple[Peer, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # what does not depend on the bucket's has float32

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]
