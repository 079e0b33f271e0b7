"""TFP, truncation of floating-point numbers. In reading order: `codec` for the settings, `formats` for what
is kept, `definition` for truncation, `native` for the same compiled, `coder` for messages, `planes` for their
refinement."""

from gradwire.codecs.tfp import planes
from gradwire.codecs.tfp.codec import TFP

__all__ = ["TFP", "planes"]
