"""Operations of the benchmark: tensors, a call, and the bytes that the call has to move.

They are defined in the files of `operations`. Peers are other projects' kernels for comparable work:
PyTorch's own cast, and packages that may be installed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from gradwire.harness.studies.bench import operations as package


@dataclass(frozen=True)
class Case:
    """An operation on one set of tensors; `run` can be called repeatedly.

    `reads` and `writes` are the tensors that an implementation without intermediate results in memory has to
    touch; a tensor that is changed in place is in both.
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
    """Another project's implementation of a comparable operation; it need not be installed."""

    name: str
    make: Callable[[Tensor], Callable[[], object] | None]
    """Makes a repeatable call from the bucket; None if the peer is missing or cannot run."""


@dataclass(frozen=True)
class Operation:
    """A measured operation: `make` returns the case for a bucket, (numel,) float32 or bfloat16 on any
    device.
    """

    name: str  # "<family>.<operation>[.<bits>]"
    kernels: tuple[str, ...]  # the compiled kernels that it spends its time in
    make: Callable[[Tensor], Case]
    peers: tuple[Peer, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # ("float32",) if the dtype does not matter

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]


@cache
def all_operations() -> tuple[Operation, ...]:
    """All operations, by family, in the order of their files."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return tuple(operation for module in modules for operation in module.operations())


def chosen_operations(patterns: Sequence[str]) -> list[Operation]:
    """The operations whose names match one of `patterns` (`*`, `?`); ValueError for a pattern without a
    match."""
    known = all_operations()
    for pattern in patterns:
        if not any(fnmatchcase(operation.name, pattern) for operation in known):
            families = dict.fromkeys(f"{operation.name.partition('.')[0]}.*" for operation in known)
            raise ValueError(
                f"bench.operations: {pattern} matches nothing; choose from {', '.join(families)}"
            )
    return [
        operation for operation in known if any(fnmatchcase(operation.name, pattern) for pattern in patterns)
    ]


Call = Callable[[], object]


def _cast(x: Tensor) -> Call:
    """PyTorch's cast to E4M3, without scales and block maxima."""
    target = torch.empty(x.numel(), dtype=torch.float8_e4m3fn, device=x.device)
    return lambda: target.copy_(x)


def _cast_back(x: Tensor) -> Call:
    source, target = x.to(torch.float8_e4m3fn), torch.empty_like(x)
    return lambda: target.copy_(source)


def _torchao(x: Tensor) -> Call | None:
    """torchao's cast to MXFP8: block maxima, scales and elements of blocks of 32."""
    try:
        from torchao.prototype.mx_formats.mx_tensor import to_mx
    except ImportError:
        return None
    rows = x[: x.numel() // 32 * 32].view(-1, 32)
    return partial(to_mx, rows, torch.float8_e4m3fn, 32) if x.is_cuda else None


def _deepspeed(bits: int, group: int, x: Tensor) -> Call | None:
    """DeepSpeed's symmetric quantizer, which ZeRO++ uses; its kernels are compiled at the first call."""
    if not x.is_cuda:
        return None
    try:
        from deepspeed.ops.quantizer import ds_quantizer
    except ImportError:
        return None
    copy = x.to(torch.float16)  # the quantizer overwrites its input
    return partial(ds_quantizer, copy, copy.numel() // group, bits)


TORCH_CAST = Peer("torch float8_e4m3fn cast", _cast)
TORCH_CAST_BACK = Peer("torch float8_e4m3fn cast back", _cast_back)
TORCHAO = Peer("torchao to_mx", _torchao)


def deepspeed_quantizer(bits: int, group: int) -> Peer:
    """DeepSpeed's quantizer of `bits` bits in groups of `group`."""
    return Peer("deepspeed ds_quantizer", partial(_deepspeed, bits, group))
