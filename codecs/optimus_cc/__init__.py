"""Optimus-CC: PowerSGD on some stages of a pipeline, and of the gradients that stages send back."""

from gradwire.codecs.optimus_cc.codec import OptimusCC

__all__ = ["OptimusCC"]
