"""THC: sums of quantized integers after a rotation (see `codec` for the settings, `hops` for a round)."""

from gradwire.codecs.thc.codec import THC

__all__ = ["THC"]
