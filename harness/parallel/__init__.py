"""Parallelisms: everything between two batches, one file each."""
