"""Shows runs in wandb. The record on disk is the truth; `task=sync` rebuilds the view from it."""
