"""Several one-dimensional tensors as bytes: their lengths, then their values.

Who unpacks them knows how many there are and their dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def packed(parts: Sequence[Tensor]) -> Tensor:
    """(length,) uint8 on the CPU; empty for no parts."""
    lengths = torch.tensor([part.numel() for part in parts], dtype=torch.int64, device="cpu")
    return torch.cat([_bytes(lengths), *(_bytes(part.cpu()) for part in parts)])


def unpacked(message: Tensor, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The tensors that `packed` was given, on the CPU."""
    rest, found = message.cpu(), []
    lengths = rest[: 8 * len(dtypes)].clone().view(torch.int64).tolist()
    rest = rest[8 * len(dtypes) :]
    for length, dtype in zip(lengths, dtypes, strict=True):
        size = length * dtype.itemsize
        found.append(rest[:size].clone().view(dtype))
        rest = rest[size:]
    assert not rest.numel(), "a message is longer than its parts"
    return found


def _bytes(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.uint8)
