"""TFP, truncation of floating-point numbers (see `formats` for what is kept, `codec` for the settings)."""

from gradwire.codecs.tfp import operations, planes
from gradwire.codecs.tfp.codec import TFP

__all__ = ["TFP", "operations", "planes"]
