"""Finished checkpoints, and what they score on published benchmarks."""
