"""What the harness itself costs: the same training as a bare PyTorch loop and as a run of the trainer."""
