"""Checkpoints of a run: written whole or not at all, verified before they are used, resumed bit for bit."""
