"""EDGC: the entropy of a gradient from some of its coordinates, and the rank that an entropy asks for."""

from gradwire.codecs.edgc.sampler import (
    differential_entropy,
    estimate,
    gaussian_entropy_with_zeros,
    gaussian_entropy_without_zeros,
    sample,
    sampled_histogram,
    stride_of,
    zero_share,
)
from gradwire.codecs.options.reduced import ESTIMATORS

__all__ = [
    "ESTIMATORS",
    "differential_entropy",
    "estimate",
    "gaussian_entropy_with_zeros",
    "gaussian_entropy_without_zeros",
    "sample",
    "sampled_histogram",
    "stride_of",
    "zero_share",
]
