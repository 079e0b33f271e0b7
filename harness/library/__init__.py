"""Compressed synchronization for a training script of one's own: `attach` and what it returns."""
