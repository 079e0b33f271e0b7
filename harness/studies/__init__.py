"""Measurements other than training: codecs on saved gradients, all-reduces, kernels, the harness's own
cost.
"""
