"""Group-wise linear quantizers, int8 and int4, with or without a Hadamard smoother: what sharded data
parallelism sends (SDP4Bit §3, ZeRO++). See `quantizer` for the settings, `definition` for the messages and
the arithmetic; `codec` is the codec that quantizes at every hop. Two all-to-alls of them are
`codecs.all_to_all`."""

from gradwire.codecs.linear.codec import Linear
from gradwire.codecs.linear.quantizer import LinearQuantizer, RoundingNoise

__all__ = ["Linear", "LinearQuantizer", "RoundingNoise"]
