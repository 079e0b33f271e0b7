"""DynamiQ: compressed multi-hop all-reduce (see `codec` for the settings, `values` for the quantizer)."""

from gradwire.codecs.dynamiq.codec import DynamiQ

__all__ = ["DynamiQ"]
