"""The histogram of sampled coordinates of a gradient, as EDGC's data sampler takes it.

In plain PyTorch this is the definition that compiled kernels reproduce. One of every 1/β consecutive
coordinates is drawn, uniformly in each such window. Every kind of layer and row thus gets its share, which
makes estimates more even than independent draws would; whole blocks would not do, since neighbours are alike.

A bin is the sign, the exponent and the first three bits of the mantissa of a float32. Bins are as fine for
small values as for large ones, so no range has to be known beforehand, and a gradient twice as large has the
same counts eight bins further on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key, mix32, stream_key
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.low_rank import LARGEST_STRIDE

BIN_SHIFT = 20
"""The bin of a value is its float32 pattern without this many bits."""

BINS = 1 << (32 - BIN_SHIFT)

ZEROS = BINS
"""The counter of zeros of either sign."""

COUNTERS = BINS + 1

_MANTISSA_BITS = 23 - BIN_SHIFT

FINITE = 255 << _MANTISSA_BITS
"""The bins of one sign's finite values; the others have infinity and NaN."""


def stride_of(rate: float) -> int:
    """1/β as a whole number: of so many consecutive coordinates one is sampled.

    Raises ValueError for a rate outside (0, 1], or of less than one coordinate in 65,536.
    """
    if not 0 < rate <= 1 or round(1 / rate) > LARGEST_STRIDE:
        raise ValueError(
            f"a sampling rate of {rate} is out of range: choose one from {1 / LARGEST_STRIDE} to 1"
        )
    return round(1 / rate)


def sampling_key(seed: int) -> Key:
    """The key of the draws of one iteration, which is their seed."""
    return stream_key(seed, 0, 0)


def sampled_coordinates(windows: Tensor, numel: int, stride: int, key: Key) -> Tensor:
    """The coordinates drawn from `windows`, int64: window w is `stride` of `numel` coordinates from w·stride
    on, the last one shorter. Same shape, int64."""
    first = windows * stride
    length = (numel - first).clamp(max=stride)
    hashes = mix32(mix32(windows ^ key[0]) + key[1] + (windows >> 32))
    return first + (hashes * length >> 32)


def sampled_histogram(x: Tensor, stride: int, seed: int) -> Tensor:
    """The histogram of one coordinate of every `stride` of `x`, (numel,) of a floating dtype: (4097,) int64.

    Entry b counts values whose float32 pattern begins with the 12 bits b, zeros aside; infinities and NaN are
    in the eight bins from 0x7F8 and those from 0xFF8 on. The last entry counts zeros. Draws depend on `seed`
    and the length alone.
    """
    counts = torch.zeros(COUNTERS, dtype=torch.int64, device=x.device)
    add_histogram(readable(x), stride, seed, counts)
    return counts


def add_histogram(x: Tensor, stride: int, seed: int, counts: Tensor) -> None:
    """Add the histogram of `x`, (numel,) float32 or bfloat16, to `counts`, (4097,) int64."""
    key = sampling_key(seed)
    library = library_for(x.device)
    if library is not None:
        run(
            library,
            "sampled_histogram",
            x.device,
            x=(x, x.numel()),
            numel=x.numel(),
            stride=stride,
            key=key,
            counts=(counts, COUNTERS),
        )
        return
    windows = torch.arange(-(-x.numel() // stride), device=x.device)
    bits = x[sampled_coordinates(windows, x.numel(), stride, key)].to(torch.float32).view(torch.int32)
    bins = ((bits >> BIN_SHIFT) & (BINS - 1)).masked_fill((bits & 0x7FFF_FFFF) == 0, ZEROS)
    counts += torch.bincount(bins, minlength=COUNTERS)


def lower_ends() -> Tensor:
    """The lower ends of the bins of finite positive values: float64 (2040,)."""
    return (torch.arange(FINITE, device="cpu") << BIN_SHIFT).to(torch.int32).view(torch.float32).double()


def log2_widths() -> Tensor:
    """The base-2 logarithm of the width of the bins of finite positive values: float64 (2040,)."""
    field = (torch.arange(FINITE, device="cpu") >> _MANTISSA_BITS).clamp(min=1)
    return (field - (127 + _MANTISSA_BITS)).double()


def finite_counts(counts: Tensor) -> Tensor:
    """The finite values but zeros of a histogram, (4097,) int64 on any device: float64 (2, 2040) on the host,
    positive and negative ones."""
    return counts[:BINS].cpu().view(2, -1)[:, :FINITE].double()
