"""The settings of `task=overhead`."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.runtime.fields import at_least
from gradwire.harness.trainer.settings import RunConfig


@dataclass(frozen=True)
class OverheadConfig:
    """The trainer's step against a bare loop's."""

    blocks: int = at_least(1, 12, 10_000)  # counted blocks of each loop; one more before them is not
    steps: int = at_least(1, 20, 1_000_000)  # optimizer steps in a block


@dataclass(frozen=True, kw_only=True)
class OverheadTask(RunConfig):
    """A training run, in blocks beside a bare loop's."""

    overhead: OverheadConfig
