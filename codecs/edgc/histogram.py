"""How often values of each of the bins (`bins`) occur among the sampled coordinates of a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.edgc import native
from gradwire.codecs.edgc.bins import BIN_SHIFT, BINS, COUNTERS, ZEROS
from gradwire.codecs.edgc.sampling import sampled_coordinates, sampling_key
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

_PIECE = 1 << 18
"""Coordinates sampled at a time: temporaries of 2 MiB."""


def sampled_histogram(x: Tensor, stride: int, seed: int) -> Tensor:
    """The histogram of one coordinate of every `stride` of `x`, (numel,) of a floating dtype: (4097,) int64.

    Entry b counts values whose float32 pattern begins with the 12 bits b, zeros aside; infinities and NaN are
    in the eight bins from 0x7F8 and those from 0xFF8 on. The last entry counts zeros. Draws depend on `seed`
    and the length alone.
    """
    counts = torch.zeros(COUNTERS, dtype=torch.int64, device=x.device)
    add_histogram(x if x.dtype in native.DTYPES else x.to(torch.float32), stride, seed, counts)
    return counts


@operator("sampled_histogram(Tensor x, int stride, int seed, Tensor(a!) counts) -> ()")
def add_histogram(x: Tensor, stride: int, seed: int, counts: Tensor) -> None:
    """Add the histogram of `x`, (numel,) float32 or bfloat16, to `counts`, (4097,) int64."""
    key = sampling_key(seed)
    library = library_for(x.device)
    if library is not None:
        native.sampled_histogram(library, x, stride, key, counts)
        return
    windows = -(-x.numel() // stride)
    for start in range(0, windows, _PIECE):
        window = torch.arange(start, min(start + _PIECE, windows), device=x.device)
        bits = x[sampled_coordinates(window, x.numel(), stride, key)].to(torch.float32).view(torch.int32)
        bins = (bits >> BIN_SHIFT).bitwise_and_(BINS - 1).masked_fill_((bits & 0x7FFF_FFFF) == 0, ZEROS)
        counts += torch.bincount(bins, minlength=COUNTERS)
