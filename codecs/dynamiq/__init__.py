"""DynamiQ: compressed multi-hop all-reduce (see `codec` for the settings, `values` for the quantizer)."""

from gradwire.codecs.dynamiq.codec import DynamiQ
from gradwire.codecs.dynamiq.plus import DynamiQPlus
from gradwire.codecs.dynamiq.uniform_codec import UniformQuantization

__all__ = ["DynamiQ", "DynamiQPlus", "UniformQuantization"]
