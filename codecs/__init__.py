"""Codecs: how the mean of the workers' gradients is computed over a network. Compression only."""
