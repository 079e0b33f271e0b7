"""Saved gradients of all workers, and codecs tried on them without training."""
