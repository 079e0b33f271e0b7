"""MXFP8, MXFP6, MXFP4: all-reduce in microscaling formats (DynamiQ §5, Appendix C).

Reading order: `codec` (the settings), `formats` (the cast and the scales of blocks), `definition` (the
operations on a bucket), `hops` (a round, and μ).
"""

from gradwire.codecs.mxfp.codec import MXFP

__all__ = ["MXFP"]
