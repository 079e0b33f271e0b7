"""The settings of `tracking`: where a run is shown in addition to its directory. Their checks do not import
wandb."""

from __future__ import annotations

import configparser
import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from gradwire.codecs.fields import one_of
from gradwire.harness.runtime.errors import ConfigError


@dataclass(frozen=True)
class UntrackedConfig:
    """No tracking: the run is only recorded in its directory."""

    name: str = one_of("none")


@dataclass(frozen=True)
class WandbConfig:
    """The run is also shown in wandb while it is recorded; `task=sync` recreates the view from the record."""

    name: str = one_of("wandb")
    project: str = "gradwire"
    entity: str | None = None  # the user or team; null: the one who is logged in
    mode: str = one_of("auto", "offline", "online", "disabled")  # auto: online if logged in, else offline
    group: str | None = None  # runs shown together; null: the sweep's name
    tags: list[str] = field(default_factory=list)


TrackingConfig = UntrackedConfig | WandbConfig


SERVER = "https://api.wandb.ai"
MODES = {
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
"""The values of WANDB_MODE and their meanings."""

NOT_IN_A_PROJECT = "/\\#?%:"


def check_tracking(tracking: TrackingConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError if no view in wandb can be opened."""
    if not isinstance(tracking, WandbConfig):
        return
    if find_spec("wandb") is None:
        raise ConfigError(
            "tracking=wandb needs the package wandb, which is not installed; pip install wandb, or use "
            "tracking=none"
        )
    if not tracking.project or set(NOT_IN_A_PROJECT) & set(tracking.project):
        raise ConfigError(
            f"tracking.project={tracking.project} is not a valid name of a project; use one without "
            f"{' '.join(NOT_IN_A_PROJECT)}"
        )
    if tracking.mode == "online" and not logged_in(environment):
        raise ConfigError(
            f"tracking.mode=online needs a key for {server(environment)}; run wandb login, set "
            "WANDB_API_KEY, or use tracking.mode=offline"
        )


def choose_mode(mode: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns online, offline or disabled: the resolved value of `tracking.mode=auto`, or the mode itself."""
    if mode != "auto":
        return mode
    meaning = MODES.get(environment.get("WANDB_MODE", "").lower())
    return meaning or ("online" if logged_in(environment) else "offline")


def logged_in(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether there is a key for the server: in the environment, or stored in the netrc file by
    `wandb login`."""
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        keys = netrc.netrc(_netrc_file(environment))
    except (OSError, netrc.NetrcParseError):
        return False
    return keys.authenticators(urlsplit(server(environment)).netloc) is not None


def server(environment: Mapping[str, str] = os.environ) -> str:
    """The address of the wandb server: WANDB_BASE_URL, or the one stored by `wandb login --host`."""
    return environment.get("WANDB_BASE_URL") or _kept_server(environment) or SERVER


def _netrc_file(environment: Mapping[str, str]) -> Path:
    if "NETRC" in environment:
        return Path(environment["NETRC"]).expanduser()
    usual = Path.home() / ".netrc"
    return usual if usual.exists() else Path.home() / "_netrc"


def _kept_server(environment: Mapping[str, str]) -> str | None:
    folder = Path(environment.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb").expanduser()
    settings = configparser.ConfigParser()
    try:
        settings.read(folder / "settings")
        return settings.get("default", "base_url", fallback=None)
    except (OSError, configparser.Error):
        return None
