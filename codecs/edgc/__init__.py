"""EDGC's gradient data sampler: the entropy of a gradient from a histogram of some of its coordinates."""

from gradwire.codecs.edgc.definition import sampled_histogram, stride_of
from gradwire.codecs.edgc.entropy import bit_entropy, gaussian_entropy, zero_share

__all__ = ["bit_entropy", "gaussian_entropy", "sampled_histogram", "stride_of", "zero_share"]
