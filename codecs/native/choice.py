"""Choice of the implementation of the codecs' kernels: one for the process.

`default` is plain PyTorch: readable, on every device, and the definition of what a kernel computes. `cpu` and
`cuda` are compiled from `csrc` and give the same bytes; `auto` stands for what a device has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradwire.codecs.native.loading import Library, LibraryName, cuda_devices, library, old_driver

KERNELS = ("auto", "default", "cpu", "cuda")
"""Values of `kernels=`."""

_active = "auto"


def available_kernels() -> tuple[str, ...]:
    """The implementations that can run here, `default` first."""
    compiled = (("cpu", library("cpu") is not None), ("cuda", cuda_devices() > 0))
    return ("default", *(name for name, there in compiled if there))


def choose_kernels(name: str, device: str = "cpu") -> str:
    """Resolve `kernels=name` for a type of device; `auto` is the fastest implementation available.

    Raises ValueError for one that is not available: a run never falls back silently.
    """
    if device == "cuda" and name in ("auto", "cuda"):
        _refuse_old_driver(name)
    available = available_kernels()
    if name == "auto":
        return device if device in available else "default"
    if name not in KERNELS:
        raise ValueError(f"kernels={name} is unknown; choose one of {', '.join(KERNELS)}")
    if name not in available:
        needed = "a C++ compiler" if name == "cpu" else "nvcc and a GPU with its driver"
        raise ValueError(
            f"kernels={name} is not available here: it needs {needed} when gradwire is installed; choose "
            f"auto or {' or '.join(available)}"
        )
    if name not in ("default", device):
        raise ValueError(f"kernels={name} cannot run on {device}; choose auto, default or {device}")
    return name


def _refuse_old_driver(name: str) -> None:
    if (reason := old_driver()) is not None:
        raise ValueError(
            f"kernels={name} cannot run here: {reason}; update the driver, install gradwire again with an "
            "nvcc of its version, or choose kernels=default"
        )


def set_kernels(name: str) -> None:
    """Select the kernels to run from now on: one of `KERNELS`, or, for tests, `emulated` (CUDA's sources on
    the CPU)."""
    global _active
    _active = name


@contextmanager
def using_kernels(name: str) -> Iterator[None]:
    """Run these kernels within the block."""
    before = _active
    set_kernels(name)
    try:
        yield
    finally:
        set_kernels(before)


def without_kernels(device: torch.device) -> str | None:
    """None if compiled kernels run on tensors of this device, otherwise a reason for `Codec.refuses_capture`:
    PyTorch's definition takes a round's key by value, so a graph would replay one step's random bits."""
    return None if library_for(device) is not None else "kernels=default takes the key by value"


def library_for(device: torch.device) -> Library | None:
    """The library whose kernels run on tensors of this device; None if the definition in PyTorch runs.

    Raises ValueError if the chosen kernels cannot run there.
    """
    if _active == "default":
        return None
    if _active == "auto":
        kind = device.type
        if kind == "cpu":
            return library("cpu")
        if kind != "cuda":
            return None
        _refuse_old_driver("auto")
        return library("cuda")
    name: LibraryName = "emulated" if _active == "emulated" else "cuda" if _active == "cuda" else "cpu"
    found = library(name)
    wanted = "cuda" if name == "cuda" else "cpu"
    if found is None or device.type != wanted:
        raise ValueError(f"kernels={_active} cannot run on {device}; choose kernels=auto or kernels=default")
    return found
