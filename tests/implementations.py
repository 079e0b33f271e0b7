"""Every implementation of the kernels that this machine can run, to compare with the definition in PyTorch.

`base`, `v3` and `v4` are the kernels for CPUs at each level of instruction sets. The others run the sources
for CUDA on the CPU: `emulated` and `reversed` with blocks and threads forwards and backwards; `small` on a
device of one block, where loops over the grid turn, with accesses to shared memory watched: shuffles and
ballots order nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from emulation import UNWATCHED, emulation
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import choose_cpu_level, library

CPU = ("base", "v3", "v4")
EMULATED = ("emulated", "reversed", "small")
IMPLEMENTATIONS = CPU + EMULATED

Result = TypeVar("Result")

_KEPT: dict[object, Any] = {}
_LIMIT = 2000


def defined(function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)` by the definition, which must not be written to.

    The latest results are kept: the next test needs the same one for another implementation, and the
    definition takes longer than all of these together.
    """
    key = (function, *map(_contents, arguments))
    if key not in _KEPT:
        if len(_KEPT) == _LIMIT:
            del _KEPT[next(iter(_KEPT))]
        with using_kernels("default"):
            _KEPT[key] = function(*arguments)
    found: Result = _KEPT[key]
    return found


def _contents(argument: Any) -> object:
    if not isinstance(argument, Tensor):
        return argument
    octets = argument.contiguous().view(-1).view(torch.uint8)
    return argument.dtype, argument.shape, hashlib.blake2b(octets.numpy()).digest()


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Run the operations with one of `IMPLEMENTATIONS`; skips the test where it cannot run."""
    if name in CPU:
        if library("cpu") is None:
            pytest.skip("the kernels for CPUs are not built")
        if not choose_cpu_level(name):
            pytest.skip(f"this CPU has no instructions of level {name}")
        try:
            with using_kernels("cpu"):
                yield
        finally:
            choose_cpu_level("")
        return
    emulated = emulation()
    small = name == "small"
    if emulated.handle.gradwire_emulation_choose(name == "reversed", small, small):
        emulated.handle.gradwire_emulation_choose(False, False, False)
        pytest.skip(UNWATCHED)
    try:
        with using_kernels("emulated"):
            yield
    finally:
        emulated.handle.gradwire_emulation_choose(False, False, False)
