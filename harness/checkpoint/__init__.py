"""Checkpoints of a run: written atomically, verified before use, and resumed bit for bit."""
