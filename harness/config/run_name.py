"""The name of a run, and the directory that its files go to."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.config.tasks import TASKS
from gradwire.harness.files.reading import printable
from gradwire.harness.record.identity import run_id
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.trainer.settings import RunConfig

MOST_NAME = 200
"""Characters of the name of a run's directory; file systems take 255 bytes."""


def run_name(config: RecordedConfig) -> str:
    """A directory name a reader can tell apart: `<model>-<codec>[-<bits>]-<topology>-s<seed>-<id>`, or what
    the task calls it, and the id."""
    if isinstance(config, RunConfig):
        chosen = f"{config.model.name}-{codec_name(config.codec)}-{config.topology.name}-s{config.seed}"
    else:
        chosen = importlib.import_module(TASKS[config.task.name].module).name(config)
    # A plug-in's colon has a meaning in many paths.
    name = f"{chosen.replace(':', '.')}-{run_id(config)}"
    if name != printable(name, MOST_NAME) or name.startswith((".", "-")) or "/" in name:
        raise ConfigError(
            f"{printable(name)!r} cannot name a run's folder: it must be one name of at most {MOST_NAME} "
            "characters that show, without a slash; set model.name= (or rename the file of gradients)"
        )
    return name


def codec_name(codec: Mapping[str, Any]) -> str:
    """The codec with its bits, if it has any."""
    bits = codec.get("bits")
    return str(codec["name"]) if not isinstance(bits, (int, float)) else f"{codec['name']}-{bits:g}"


def run_directory(config: RecordedConfig, override: str | Path | None = None) -> Path:
    """Where a run's files go: `override`, else `outputs/<run name>` below the working directory."""
    return Path(override) if override is not None else Path("outputs") / run_name(config)
