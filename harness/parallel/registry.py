"""All parallelisms by name. A new one is one entry here, its files beside this one, one YAML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelerate import Accelerator
from omegaconf import DictConfig
from torch import nn

from gradwire.harness.parallel import ddp_setup
from gradwire.harness.parallel.interface import Parallelism
from gradwire.harness.world.interface import World


@dataclass(frozen=True)
class ParallelKind:
    """How to make a parallelism, and why a configuration cannot have it (None: it can)."""

    build: Callable[[DictConfig, nn.Module, Accelerator, World], Parallelism]
    supports: Callable[[DictConfig], str | None]


PARALLELISMS = {"ddp": ParallelKind(ddp_setup.build, ddp_setup.supports)}
