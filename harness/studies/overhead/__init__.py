"""What the harness itself costs: the same training in a bare PyTorch loop and in the trainer."""
