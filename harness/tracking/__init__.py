"""Shows runs in wandb. The record on disk is the truth; `task=sync` rebuilds the view from it."""

from __future__ import annotations

from gradwire.harness.tracking.follow import tracked

__all__ = ["tracked"]
