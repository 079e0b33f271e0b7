"""MXFP8, MXFP6, MXFP4: all-reduce in microscaling formats (DynamiQ §5, Appendix C). In reading order: `codec`
for the settings, `automatic_scaling` for μ, `scales` for what blocks are divided by, `formats` for the cast,
`definition` for the operations on a bucket, `native` for the same compiled, `hops` for a round."""

from gradwire.codecs.mxfp.codec import MXFP

__all__ = ["MXFP"]
