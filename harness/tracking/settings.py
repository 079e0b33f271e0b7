"""The settings of `tracking`: where else a run is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.harness.runtime.fields import one_of


@dataclass(frozen=True)
class UntrackedConfig:
    """The run's own directory only."""

    name: str = one_of("none")


@dataclass(frozen=True)
class WandbConfig:
    """The run is shown in wandb, too, as it is written; `task=sync` rebuilds the view from the record."""

    name: str = one_of("wandb")
    project: str = "gradwire"
    entity: str | None = None  # the user or team; null: the one who is logged in
    mode: str = one_of("auto", "offline", "online", "disabled")  # auto: online if logged in, else offline
    group: str | None = None  # runs shown together; null: the sweep's name
    tags: list[str] = field(default_factory=list)


TrackingConfig = UntrackedConfig | WandbConfig
