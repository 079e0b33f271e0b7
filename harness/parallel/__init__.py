"""Parallelisms: everything between two batches. One file each."""
