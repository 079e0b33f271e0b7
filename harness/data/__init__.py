"""Training data: corpora, tokens, their order and the batches made of them."""
