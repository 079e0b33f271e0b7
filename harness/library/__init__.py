"""Compressed synchronization for your own training script: `attach` and what it returns."""
