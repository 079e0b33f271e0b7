"""Training data: corpora, tokens, their order, and batches."""
