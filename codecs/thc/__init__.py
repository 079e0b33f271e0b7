"""THC: sums of quantized integers after a rotation. In reading order: `codec` for the settings, `blocks` for
what is rotated together, `ranges` for what it is clamped to, `table` for the values, `definition` for the
quantization, `native` for the same compiled, `hops` for a round."""

from gradwire.codecs.thc.codec import THC

__all__ = ["THC"]
