"""The schemas of every group, and their registration with Hydra's ConfigStore.

They live under `schema/<group>`, so that they are not listed as choices of the group itself. A
choice `conf/<group>/<choice>.yaml` names the one it is typed by in its defaults list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore

from gradwire.codecs.registry import codec_classes
from gradwire.codecs.wrappers.wrapper import CommonOptions
from gradwire.harness.comm.settings import ClusterConfig, OverlapConfig, TopologyConfig
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.models.papers import PRESETS
from gradwire.harness.network.settings import NETWORKS
from gradwire.harness.parallel.settings import ParallelConfig
from gradwire.harness.runtime.fields import one_of, plain_name
from gradwire.harness.tracking.settings import UntrackedConfig, WandbConfig
from gradwire.harness.trainer.settings import EvalConfig, MeasureConfig, TrainConfig


@dataclass
class TaskConfig:
    """What to do."""

    name: str = "train"  # a key of harness.config.tasks.TASKS


@dataclass
class KernelsConfig:
    """Which implementation of the codecs' kernels runs; all give the same bytes."""

    name: str = one_of("auto", "default", "cpu", "cuda")  # auto: the fastest that are built for the device


@dataclass
class SizeConfig:
    """A preset over model, train, eval and measure."""

    name: str = plain_name("paper")
    families: dict[str, Any] = field(default_factory=dict)  # fields whose value depends on model.family


@cache
def group_schemas() -> dict[str, dict[str, Any]]:
    """Group to schema name to dataclass (or an instance of one: then its values are the preset).

    A group whose choices differ in their fields has one schema per choice, under the choice's name;
    the others have one, called `base`.
    """
    return {
        "task": {"base": TaskConfig},
        "model": {name: preset() for name, preset in PRESETS.items()},
        "dataset": {"base": DatasetConfig},
        "codec": {name: _with_common_options(codec) for name, codec in codec_classes().items()},
        "topology": {"base": TopologyConfig},
        "parallel": {"base": ParallelConfig},
        "cluster": {"base": ClusterConfig},
        "network": dict(NETWORKS),
        "train": {"base": TrainConfig},
        "eval": {"base": EvalConfig},
        "measure": {"base": MeasureConfig},
        "tracking": {"none": UntrackedConfig, "wandb": WandbConfig},
        "kernels": {"base": KernelsConfig},
        "size": {"base": SizeConfig},
        "overlap": {"base": OverlapConfig},
    }


def _with_common_options(codec: type) -> type:
    """The schema of a codec: its own fields, then those that every codec has."""
    return dataclasses.make_dataclass(codec.__name__, [], bases=(CommonOptions, codec))


@cache
def register_schemas() -> None:
    """Make the schemas known to Hydra, once per process.

    Hydra copies all its sources, this store with every schema in it, whenever it composes or lists the
    choices of a group: half the time of composing. The store hands out copies of what is in it anyway.
    """
    store = ConfigStore.instance()
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]
    for group, schemas in group_schemas().items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)


def choices_with_field(group: str, field: str) -> Iterator[str]:
    """The choices of `group` whose own schema has `field`: `bits` of `codec` gives `dynamiq`."""
    for name, schema in group_schemas().get(group, {}).items():
        if name != "base" and field in (known.name for known in dataclasses.fields(schema)):
            yield name
