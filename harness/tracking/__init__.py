"""Runs shown in wandb. The record on disk is the truth; the view can be rebuilt from it: `task=sync`."""

from __future__ import annotations

from gradwire.harness.tracking.follow import tracked

__all__ = ["tracked"]
