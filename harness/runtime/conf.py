"""The folder of the configuration's groups."""

from __future__ import annotations

from pathlib import Path

from gradwire.harness.runtime.errors import ConfigError

CONFIG_NAME = "config"


def conf_directory() -> Path:
    """The folder of the Hydra groups: next to the packages in a checkout, and in a wheel."""
    folder = Path(__file__).resolve().parents[2] / "conf"
    if not (folder / f"{CONFIG_NAME}.yaml").is_file():
        raise ConfigError(f"{folder}: no {CONFIG_NAME}.yaml; install gradwire again")
    return folder
