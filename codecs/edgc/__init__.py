"""EDGC's gradient data sampler: the entropy of a gradient from a histogram of some of its coordinates."""

from gradwire.codecs.edgc.definition import sampled_histogram, stride_of
from gradwire.codecs.edgc.entropy import (
    differential_entropy,
    gaussian_entropy_with_zeros,
    gaussian_entropy_without_zeros,
    zero_share,
)

__all__ = [
    "differential_entropy",
    "gaussian_entropy_with_zeros",
    "gaussian_entropy_without_zeros",
    "sampled_histogram",
    "stride_of",
    "zero_share",
]
