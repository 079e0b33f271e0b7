"""Compressed synchronization for a user's own training script: `attach` and what it returns."""
