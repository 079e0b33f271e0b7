"""MXFP8, MXFP6, MXFP4: all-reduce in microscaling formats (see `formats` for the cast, `codec` for the
settings)."""

from gradwire.codecs.mxfp.codec import MXFP

__all__ = ["MXFP"]
