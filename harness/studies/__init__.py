"""Measurements beside training: codecs on saved gradients, all-reduces, kernels, the harness's own cost."""
