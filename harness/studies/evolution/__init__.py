"""How gradients change over training: entropy, distributions, correlations and low-rank errors by step."""
