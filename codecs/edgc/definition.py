"""The histogram of the sampled coordinates of a gradient: which coordinates EDGC's data sampler looks at, and
how often values of each of the bins (`bins`) occur among them. In plain PyTorch this is the definition that
compiled kernels reproduce.

One of every 1/β consecutive coordinates is sampled. Drawn uniformly in each such window, all kinds of layers
and rows get their share, which makes estimates more even than independent draws; whole blocks of coordinates
would not do, for neighbours are alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key, mix32, stream_key
from gradwire.codecs.edgc.bins import BIN_SHIFT, BINS, COUNTERS, ZEROS
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for

LARGEST_STRIDE = 1 << 16


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
