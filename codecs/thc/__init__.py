"""THC: sums of quantized integers after a rotation. In reading order: `codec` for the settings and a
round, `blocks` for what is rotated together and the tables of values, `ranges` for what it is clamped to,
`definition` for the quantization."""

from gradwire.codecs.thc.codec import THC

__all__ = ["THC"]
