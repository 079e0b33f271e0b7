"""Objectives: the conversion of rows to batches, the sums of an evaluation, and the resulting metrics."""
