"""Which coordinates of a gradient EDGC's data sampler looks at: one of every 1/β consecutive ones.

Drawn uniformly in each such window, all kinds of layers and rows get their share, which makes estimates more
even than independent draws; whole blocks of coordinates would not do, for neighbours are alike.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.random import Key, mix32, stream_key

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
    """Of the draws of one iteration, which is their seed."""
    return stream_key(seed, 0, 0)


def sampled_coordinates(windows: Tensor, numel: int, stride: int, key: Key) -> Tensor:
    """The coordinates drawn from `windows`, int64: window w is `stride` of `numel` coordinates from w·stride
    on, the last one shorter. Same shape, int64."""
    first = windows * stride
    length = (numel - first).clamp_(max=stride)
    hashes = mix32(mix32(windows ^ key[0]) + key[1] + (windows >> 32))
    return first + (hashes * length >> 32)
