"""The cost of the harness itself: the same training in a bare PyTorch loop and in the trainer."""
