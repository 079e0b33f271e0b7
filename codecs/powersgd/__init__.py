"""PowerSGD: low-rank gradients by one step of power iteration a round, with error feedback (see `factors` for
the algorithm, `codec` for the settings)."""

from gradwire.codecs.powersgd.codec import PowerSGD

__all__ = ["PowerSGD"]
