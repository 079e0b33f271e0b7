"""Every implementation of the kernels that this machine can run, to compare with the definition in PyTorch.

`base`, `v3` and `v4` are the kernels for CPUs at each level of instruction sets; `emulated` and `reversed`
run the sources for CUDA on the CPU, blocks and threads forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import choose_cpu_level, library

CPU = ("base", "v3", "v4")
EMULATED = ("emulated", "reversed")
IMPLEMENTATIONS = CPU + EMULATED


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
    emulated = library("emulated")
    if emulated is None:
        pytest.skip("the emulation of CUDA is not built")
    emulated.handle.gradwire_emulation_reverse(name == "reversed")
    try:
        with using_kernels("emulated"):
            yield
    finally:
        emulated.handle.gradwire_emulation_reverse(False)
