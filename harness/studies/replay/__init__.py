"""Codecs tried on all workers' saved gradients, without training."""
