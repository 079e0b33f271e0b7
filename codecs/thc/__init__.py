"""THC: sums of quantized integers after a rotation.

Reading order: `codec` (the settings and a round), `blocks` (the rotated blocks and the tables of values),
`ranges` (the ranges that coordinates are clamped to), `definition` (the quantization).
"""

from gradwire.codecs.thc.codec import THC

__all__ = ["THC"]
