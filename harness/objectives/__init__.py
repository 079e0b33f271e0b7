"""Objectives: how rows become batches, what an evaluation sums, and which metrics follow."""
