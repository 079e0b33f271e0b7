"""Wrappers of any codec: parameters that travel in bf16 (`exclude`), and error feedback (`feedback`)
with its bounded `residuals`."""
