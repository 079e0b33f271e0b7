"""Prediction of a training step at a paper's size, on the simulated clock, without tensor values."""
