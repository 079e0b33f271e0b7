"""Scores of finished checkpoints on published benchmarks."""
