"""EDGC: the entropy of a gradient from some of its coordinates, and the rank that an entropy asks for."""

from gradwire.codecs.edgc.definition import sampled_histogram, stride_of
from gradwire.codecs.edgc.entropy import (
    differential_entropy,
    gaussian_entropy_with_zeros,
    gaussian_entropy_without_zeros,
    zero_share,
)
from gradwire.codecs.edgc.sampler import estimate, sample
from gradwire.codecs.options.low_rank import ESTIMATORS

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
