"""TFP, truncation of floating-point numbers. In reading order: `codec` for the settings, `definition` for
formats and truncation, `coder` for messages and their refinement."""

from gradwire.codecs.tfp.codec import TFP

__all__ = ["TFP"]
