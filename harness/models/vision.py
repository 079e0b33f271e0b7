"""The families of models for images: residual networks, from transformers or, with groups, from timm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.harness.models.settings import ModelConfig

OBJECTIVE = "image_classification"
"""The one objective of these families."""

EXPANSION = 4
"""The width of a bottleneck's output, as a multiple of that of its 3×3 convolution (He et al. 2016, §4.1)."""

RESNEXT_WIDTH = 128
"""Total channels of all groups in a ResNeXt's first stage, where a ResNet has 64 (Xie et al. 2017, Table
1).
"""


@dataclass(frozen=True)
class VisionFamily:
    """The mapping from a `ModelConfig` to the config of one family, by the name of its class in transformers.

    `package` is an additional package that the family needs; `extra` installs it.
    """

    config_class: str
    values: Callable[[ModelConfig], dict[str, Any]]
    package: str | None = None
    extra: str = ""


def stage_widths(config: ModelConfig) -> list[int]:
    """Channels of the 3×3 convolutions of each stage: every stage has twice those of the one before."""
    last = len(config.depths) - 1
    return [config.hidden_size >> (last - stage) for stage in range(last + 1)]


def _resnet(config: ModelConfig) -> dict[str, Any]:
    """The settings of a ResNet, whose stem is as wide as the first stage's convolutions."""
    widths, expansion = stage_widths(config), EXPANSION if config.bottleneck else 1
    return {
        "embedding_size": widths[0],
        "hidden_sizes": [expansion * width for width in widths],
        "depths": list(config.depths),
        "layer_type": "bottleneck" if config.bottleneck else "basic",
    }


def _resnext(config: ModelConfig) -> dict[str, Any]:
    """The arguments of timm's ResNet that turn it into a ResNeXt of this shape."""
    sizes = {"layers": list(config.depths), "channels": stage_widths(config)}
    groups = {"cardinality": config.groups, "base_width": RESNEXT_WIDTH // config.groups}
    return {"architecture": "resnext101_32x4d", "model_args": sizes | groups}


VISION: Mapping[str, VisionFamily] = {
    # Residual networks (He et al. 2016) with basic or bottleneck layers.
    "resnet": VisionFamily("ResNetConfig", _resnet),
    # Residual networks whose 3×3 convolutions are divided into groups (Xie et al. 2017).
    "resnext": VisionFamily("TimmWrapperConfig", _resnext, package="timm", extra="images"),
}
"""Families by name, besides those of `families.py`."""


def check_vision(config: ModelConfig) -> None:
    """Raises a one-line ValueError for the first field that is invalid or does not apply to these models."""
    stages = len(config.depths)
    if not stages or config.hidden_size % (1 << (stages - 1)):
        raise ValueError(
            f"model.depths={config.depths} with model.hidden_size={config.hidden_size}: each stage has "
            "half the channels of the next; use e.g. model.depths=[2,2,2] model.hidden_size=64"
        )
    if config.weights == "pretrained":
        raise ValueError(
            f"model.weights=pretrained: models of family {config.family} are made from random weights here; "
            "use model.weights=random"
        )
    _check_groups(config, stage_widths(config)[0])


def _check_groups(config: ModelConfig, first: int) -> None:
    if config.family == "resnet" and config.groups != 1:
        raise ValueError(
            f"model.groups={config.groups}: a resnet has none; use model.groups=1 or model.family=resnext"
        )
    if config.family == "resnext" and (not config.bottleneck or RESNEXT_WIDTH % config.groups):
        raise ValueError(
            f"model.groups={config.groups} with model.bottleneck={str(config.bottleneck).lower()}: a resnext "
            f"has bottlenecks, and groups that divide {RESNEXT_WIDTH}; use model.groups=32 and "
            "model.bottleneck=true"
        )
    if config.family == "resnext" and first * RESNEXT_WIDTH // 64 < config.groups:
        raise ValueError(
            f"model.groups={config.groups}: the first stage has {first * RESNEXT_WIDTH // 64} channels to "
            "divide; use fewer groups, or a larger model.hidden_size"
        )


def missing_package(family: str) -> str | None:
    """Returns None, or one line that names a missing package and how to get it."""
    found = VISION.get(family)
    if found is None or found.package is None or find_spec(found.package) is not None:
        return None
    return (
        f"model.family={family} needs {found.package}, which is not installed; use pip install "
        f"'gradwire[{found.extra}]' or model=resnet50"
    )


def num_parameters(config: ModelConfig) -> int:
    """A lower bound on the number of parameters: the weights of the convolutions."""
    total = 0
    for depth, width in zip(config.depths, stage_widths(config), strict=True):
        inner = 2 * width if config.family == "resnext" else width
        if config.bottleneck:
            total += depth * (2 * EXPANSION * width * inner + 9 * inner * inner // config.groups)
        else:  # the first convolution of a stage has the narrower input of the stage before
            total += (2 * depth - 1) * 9 * width * width
    return total
