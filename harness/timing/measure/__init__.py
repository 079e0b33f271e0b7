"""Measurement: spans, clocks, errors and figures derived from them. Nothing here changes what a run
computes.
"""
