"""What the library makes is made in no mode of the script's.

An evaluation that saves or loads runs under `torch.inference_mode()`, a script may build its model under
`torch.device("meta")`. Buffers made in such a mode outlive it, and the next backward pass cannot write to
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


@contextlib.contextmanager
def no_mode() -> Iterator[None]:
    """The block runs outside of inference mode, makes no graph, and calls torch's own functions, not those of
    a mode that `torch.set_default_device()` or `with torch.device(…)` sets."""
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


def in_no_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, which runs in `no_mode`."""

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        with no_mode():
            return function(*given, **named)

    return run
