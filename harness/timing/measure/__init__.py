"""Measurement: spans, clocks, errors and what they add up to. Sees everything, changes nothing."""
