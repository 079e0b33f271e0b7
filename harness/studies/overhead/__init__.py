"""The cost of the harness itself: the same training in a plain PyTorch loop and in the trainer."""
