"""The name of a run, and the directory that its files go to."""

from __future__ import annotations

import importlib
from pathlib import Path

from omegaconf import DictConfig

from gradwire.harness.config.tasks import TASKS
from gradwire.harness.files.reading import printable
from gradwire.harness.record.identity import run_id
from gradwire.harness.runtime.errors import ConfigError

MOST_NAME = 200
"""Characters of the name of a run's directory; file systems take 255 bytes."""


def run_name(config: DictConfig) -> str:
    """A directory name a reader can tell apart: `<model>-<codec>[-<bits>]-<topology>-s<seed>-<id>`, or what
    the task calls it, and the id."""
    task = TASKS[config.task.name]
    if task.trains:
        chosen = f"{config.model.name}-{codec_name(config)}-{config.topology.name}-s{config.seed}"
    else:
        chosen = importlib.import_module(task.module).name(config)
    # A plug-in's colon has a meaning in many paths.
    name = f"{chosen.replace(':', '.')}-{run_id(config)}"
    if name != printable(name, MOST_NAME) or name.startswith((".", "-")) or "/" in name:
        raise ConfigError(
            f"{printable(name)!r} cannot name a run's folder: it must be one name of at most {MOST_NAME} "
            "characters that show, without a slash; set model.name= (or rename the file of gradients)"
        )
    return name


def codec_name(config: DictConfig) -> str:
    """The codec with its bits, if it has any."""
    bits = config.codec.get("bits")
    return config.codec.name if not isinstance(bits, (int, float)) else f"{config.codec.name}-{bits:g}"


def run_directory(config: DictConfig, override: str | Path | None = None) -> Path:
    """Where a run's files go: `override`, else `outputs/<run name>` below the working directory."""
    return Path(override) if override is not None else Path("outputs") / run_name(config)
