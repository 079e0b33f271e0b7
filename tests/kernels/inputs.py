"""Gradients of every kind that a kernel must treat as its definition does."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = (
    "normal",
    "heavy_tail",
    "zeros",
    "signed_zeros",
    "subnormal",
    "tiny",
    "largest",
    "infinite",
    "nan",
    "mixed",
)


WRONG_KEY = (0x0F1E_2D3C, 0x4B5A_6978)
"""A key given by value along with the right key in memory, which is read instead."""


def key_in_memory(key: tuple[int, int]) -> Tensor:
    """The key's two words as `Round.key_place` has them: (2,) int32."""
    return torch.tensor(key, dtype=torch.int64).to(torch.int32)


def gradient(kind: str, numel: int, seed: int = 0) -> Tensor:
    """(numel,) float32 of one of `KINDS`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator)
    if kind == "heavy_tail":
        x *= torch.randn(numel, generator=generator).mul(4).exp2()
    elif kind == "zeros":
        x.zero_()
    elif kind == "signed_zeros":
        x.mul_(0.0)
        x[::7] = 1e-3
    elif kind == "subnormal":
        x *= 2.0**-127
        x[::3] *= 2.0**-15
    elif kind == "tiny":
        x *= 2.0**-100
    elif kind == "largest":
        x = x.sign() * torch.finfo(torch.float32).max * torch.rand(numel, generator=generator).round()
    elif kind == "infinite":
        x[numel // 2 :: 700] = torch.inf
        x[numel // 3 :: 900] = -torch.inf
    elif kind == "nan":
        x[numel // 2 :: 600] = torch.nan
    elif kind == "mixed":
        x *= (
            torch.randint(-120, 100, (-(-numel // 64),), generator=generator)
            .exp2()
            .repeat_interleave(64)[:numel]
        )
    return x


def misaligned(x: Tensor, offset: int = 1) -> Tensor:
    """Returns these values at an address that is `offset` elements past an aligned one."""
    room = torch.empty(x.numel() + offset, dtype=x.dtype, device=x.device)
    room[offset:] = x
    return room[offset:]


def poisoned(numel: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """An output tensor whose bytes depend on the seed, so that bytes left unwritten are noticed."""
    fill = 0x5B if seed == 0 else 0xA6
    return torch.full((numel * dtype.itemsize,), fill, dtype=torch.uint8).view(dtype)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Asserts that the bytes are equal; any floating-point NaN equals any other."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if actual.dtype.is_floating_point:
        assert torch.equal(actual.isnan(), expected.isnan())
        actual, expected = (
            actual.nan_to_num(0, torch.inf, -torch.inf),
            expected.nan_to_num(0, torch.inf, -torch.inf),
        )
    actual, expected = (x.reshape(-1).view(torch.uint8) for x in (actual, expected))
    differing = int((actual != expected).sum())
    assert differing == 0, f"{differing} of {actual.numel()} bytes differ"
