"""Operators of PyTorch in the namespace `gradwire`: each one operation of a codec, whatever implements it.

They exist for those who compile their model or write a codec of their own; codecs call the same functions
directly. An operator writes to tensors it is given and returns nothing, so its fake implementation is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]


def operator(schema: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function of tensors and numbers under `torch.ops.gradwire`; it chooses the implementation.

    `schema` is PyTorch's, "name(Tensor x, Tensor(a!) out) -> ()", with every written tensor marked.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema)
        for device in ("CPU", "CUDA"):
            _LIBRARY.impl(name, function, device)
        torch.library.register_fake(f"gradwire::{name}", lambda *args, **kwargs: None, lib=_LIBRARY)
        return function

    return register
