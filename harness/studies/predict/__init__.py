"""A training step at a paper's size, on the simulated clock, without its tensors."""
