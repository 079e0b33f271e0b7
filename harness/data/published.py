"""The settings of the published data sets, which `dataset=auto` looks up by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

WAYS_OUT = "use dataset.path=<its files, or your own text> or dataset=embedded"


def published_settings(name: str, folder: Path, model_name: str) -> dict[str, Any]:
    """Returns the values of `<folder>/<name>.yaml`, as `dataset=<name>` composes them.

    Raises ValueError, in one line, if there is no such file for the data set that the paper trains
    `model_name` on.
    """
    file = folder / f"{name}.yaml"
    if not file.is_file():
        raise ValueError(
            f"dataset=auto: model={model_name} trains on {name}, which has no conf/dataset/{name}.yaml; "
            f"{WAYS_OUT}"
        )
    settings = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items() if key != "defaults"}
