"""Calling a kernel: its struct filled in, the tensors in it checked, errors as exceptions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.native.loading import BUCKETS, Library


class KernelError(RuntimeError):
    """A kernel refused its arguments, or CUDA failed."""


class Call:
    """One operation with the struct of its arguments, to be called once or repeatedly: update the changed
    fields of `arguments`, then call `run()`.

    The owner must keep the tensors alive. `run` takes about a microsecond, where PyTorch's operators take
    some twenty. An instance must not be used by two threads at a time.
    """

    def __init__(self, library: Library, operation: str, device: torch.device, given: dict[str, Any]) -> None:
        """`given` has fields of the operation's struct by name. A tensor comes with the number of elements
        that it must have, `(x, numel)`, and may be None. Fields left out are 0 and null.

        Raises ValueError for a tensor of another size, dtype or device, or one that is not contiguous:
        kernels do not check their pointers. Raises ImportError for a field that the library does not have.
        """
        struct, self._function = library.operation(operation)
        self._library, self._operation, self._device = library, operation, device
        self.arguments: Any = struct()
        self._tensors = struct.tensors
        self.header: Any = self.arguments.call  # the same memory; looking it up each time takes longer
        self.header.bytes = ctypes.sizeof(struct)
        self._index: int | None = None
        if device.type == "cuda":
            self._index = torch.cuda.current_device() if device.index is None else device.index
        self.header.device = -1 if self._index is None else self._index
        self._reference = ctypes.byref(self.arguments)
        self.fill(given)

    def fill(self, given: Mapping[str, Any]) -> None:
        """Set these fields and leave the others as they are; `given` and errors are those of the
        constructor."""
        arguments, tensors, dtype = self.arguments, self._tensors, 0
        try:
            for name, value in given.items():
                dtypes = tensors.get(name)
                if dtypes is not None:
                    tensor, numel = value
                    if tensor is None:
                        value = None
                    else:
                        value = pointer(tensor, self._operation, name, dtypes, numel, self._device)
                        if dtypes is BUCKETS:
                            dtype = BUCKETS.index(tensor.dtype)
                setattr(arguments, name, value)
        except AttributeError as error:
            raise ImportError(f"{self._library.path}: {error}; build the package again") from None
        self.header.dtype = dtype

    def run(self) -> None:
        """Makes the call, on the current stream. Raises KernelError, naming the operation and the cause."""
        self.header.threads = torch.get_num_threads()
        if self._index is not None:
            self.header.stream = stream_pointer(self._index)
        code = self._function(self._reference)
        if code:
            raise KernelError(self._failure(code))

    def _failure(self, code: int) -> str:
        values = ((name, getattr(self.arguments, name)) for name, *_ in self.arguments._fields_)
        numbers = ", ".join(f"{name}={value}" for name, value in values if isinstance(value, int | float))
        where = f"{self._library.name} kernel {self._operation} on {self._device}"
        return f"{where}: {self._library.error(code)} (code {code}; {numbers})"


class _Kept(threading.local):
    """A thread's calls by library, operation, device and the names of their fields."""

    def __init__(self) -> None:
        self.calls: dict[tuple[object, ...], Call] = {}


_kept = _Kept()


def run(library: Library, operation: str, device: torch.device, **given: Any) -> None:
    """Make one call with these fields of the operation's struct, in the form that `Call` takes.

    A thread keeps the struct for its next call with the same fields, which sets all of them anew: making one
    takes longer.
    """
    key = (library, operation, device, *given)
    call = _kept.calls.get(key)
    if call is None:
        call = _kept.calls[key] = Call(library, operation, device, given)
    else:
        call.fill(given)
    call.run()


def stream_pointer(index: int) -> int:
    """The calling thread's current stream on CUDA device `index`, as kernels take it.

    `torch.cuda.current_stream` makes a `Stream` first, which takes several times as long.
    """
    current: int = torch._C._cuda_getCurrentRawStream(index)
    return current


def pointer(
    x: Tensor | None,
    operation: str,
    name: str,
    dtypes: Sequence[torch.dtype],
    numel: int,
    device: torch.device,
) -> int | None:
    """The address of a contiguous tensor of one of `dtypes` and exactly `numel` elements on `device`; None
    for None. Raises ValueError for any other tensor."""
    if x is None:
        return None
    if x.dtype in dtypes and x.numel() == numel and x.device == device and x.is_contiguous():
        return x.data_ptr()
    wanted = " or ".join(str(dtype) for dtype in dtypes)
    raise ValueError(
        f"{operation}: {name} must be a contiguous {wanted} of {numel} elements on {device}, got {x.dtype} "
        f"of shape {tuple(x.shape)} and strides {x.stride()} on {x.device}"
    )


def readable(x: Tensor) -> Tensor:
    """`x` itself if kernels can read its dtype, otherwise converted to float32."""
    return x if x.dtype in BUCKETS else x.to(torch.float32)
