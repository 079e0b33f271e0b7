"""Traces: what each rank did in a step, in which order, and how long its own work took."""
