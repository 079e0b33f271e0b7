"""Group-wise linear quantizers, int8 and int4, with or without a Hadamard smoother: what sharded data
parallelism sends (SDP4Bit §3, ZeRO++). See `quantizer` for the settings, `definition` for the arithmetic."""

from gradwire.codecs.linear.quantizer import LinearQuantizer
from gradwire.codecs.linear.rounding import RoundingNoise

__all__ = ["LinearQuantizer", "RoundingNoise"]
