"""Calling a kernel: its struct of arguments, checks of the tensors in it, errors as exceptions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.library import Library

Pointer = ctypes.c_void_p

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


class KernelError(RuntimeError):
    """A kernel refused its arguments, or CUDA failed."""


class Call(ctypes.Structure):
    """`gradwire_call`, the beginning of every operation's struct."""

    _fields_: ClassVar = [
        ("bytes", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_uint64),
        ("threads", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class Plan:
    """A call that is filled in once and made many times: set what changes in `arguments`, then `run()`.

    It keeps no tensors alive: that is for whoever made it. Takes a microsecond, where PyTorch's operators
    take some twenty. Not for two threads at a time: the arguments are theirs while a call lasts.
    """

    def __init__(self, library: Library, operation: str, arguments: ctypes.Structure, device: torch.device):
        self.arguments: Any = arguments
        self._library, self._operation, self._device = library, operation, device
        call = self.arguments.call
        call.bytes = ctypes.sizeof(arguments)
        call.device = -1 if device.type == "cpu" else _index(device)
        self._function = library.function(operation)
        self._reference = ctypes.byref(arguments)

    def run(self) -> None:
        """Raises KernelError, naming the operation and the cause."""
        self.arguments.call.threads = torch.get_num_threads()
        if self._device.type == "cuda":
            self.arguments.call.stream = torch.cuda.current_stream(self._device).cuda_stream
        code = self._function(self._reference)
        if code:
            raise KernelError(self._failure(code))

    def _failure(self, code: int) -> str:
        values = ((name, getattr(self.arguments, name)) for name, *_ in self.arguments._fields_)
        numbers = ", ".join(f"{name}={value}" for name, value in values if isinstance(value, int | float))
        where = f"{self._library.name} kernel {self._operation} on {self._device}"
        return f"{where}: {self._library.error(code)} (code {code}; {numbers})"


def run(library: Library, operation: str, arguments: ctypes.Structure, device: torch.device) -> None:
    """Make one call."""
    Plan(library, operation, arguments, device).run()


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def dtype_code(x: Tensor, operation: str) -> int:
    """The number of a dtype that kernels read and write; raises ValueError for others."""
    if x.dtype not in _DTYPES:
        raise ValueError(
            f"{operation}: float32 or bfloat16 is needed, got {x.dtype} of shape {tuple(x.shape)}"
        )
    return _DTYPES[x.dtype]


def pointer(
    x: Tensor | None,
    operation: str,
    name: str,
    dtypes: Sequence[torch.dtype],
    numel: int,
    device: torch.device,
) -> int | None:
    """The address of a contiguous tensor of one of `dtypes` and exactly `numel` elements on `device`; None
    for None.

    Raises ValueError for any other tensor: a kernel believes what it is given.
    """
    if x is None:
        return None
    if x.dtype in dtypes and x.numel() == numel and x.device == device and x.is_contiguous():
        return x.data_ptr()
    wanted = " or ".join(str(dtype) for dtype in dtypes)
    raise ValueError(
        f"{operation}: {name} must be a contiguous {wanted} of {numel} elements on {device}, got {x.dtype} "
        f"of shape {tuple(x.shape)} and strides {x.stride()} on {x.device}"
    )
