"""EDGC's gradient data sampler: the entropy of a gradient from a histogram of some of its coordinates."""

from gradwire.codecs.edgc.entropy import bit_entropy, gaussian_entropy, zero_share
from gradwire.codecs.edgc.histogram import sampled_histogram
from gradwire.codecs.edgc.sampling import stride_of

__all__ = ["bit_entropy", "gaussian_entropy", "sampled_histogram", "stride_of", "zero_share"]
