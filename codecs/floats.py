"""Float32 arithmetic that every backend and machine repeats bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor


def constant(value: float, like: Tensor) -> Tensor:
    """`value` as a float32 scalar tensor on the device of `like`.

    Every division by or of a constant goes through it: with a Python number PyTorch may multiply by a
    reciprocal instead, which rounds twice and differs between devices.
    """
    return torch.full((), value, dtype=torch.float32, device=like.device)


def power_of_two(field: Tensor) -> Tensor:
    """2^(field − 127) as float32, exactly; `field` int32 in [1, 254]."""
    return (field << 23).view(torch.float32)
