"""Group-wise linear quantizers, int8 and int4, with or without a Hadamard smoother, as used by sharded data
parallelism (SDP4Bit §3, ZeRO++).

See `quantizer` for the settings, `definition` for the messages and the arithmetic, and `codec` for the codec
that quantizes at every hop. `codecs.all_to_all` uses the quantizers in two all-to-alls.
"""

from gradwire.codecs.linear.codec import Linear
from gradwire.codecs.linear.quantizer import LinearQuantizer, RoundingNoise

__all__ = ["Linear", "LinearQuantizer", "RoundingNoise"]
