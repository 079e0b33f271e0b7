"""The schemas of every group, and how Hydra gets them.

They live under `schema/<group>`, so that they are not listed as choices of the group itself. A
choice `conf/<group>/<choice>.yaml` names the one it is typed by in its defaults list.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from gradwire.codecs.options.common import CommonOptions
from gradwire.codecs.registry import codec_names, codec_options
from gradwire.harness.comm.settings import ClusterConfig, OverlapConfig, TopologyConfig
from gradwire.harness.data.settings import DatasetConfig
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.network.settings import NETWORKS
from gradwire.harness.parallel.settings import PARALLEL_SETTINGS
from gradwire.harness.record.settings import TaskConfig
from gradwire.harness.tracking.settings import UntrackedConfig, WandbConfig
from gradwire.harness.trainer.settings import (
    EvalConfig,
    KernelsConfig,
    MeasureConfig,
    SizeConfig,
    TrainConfig,
)

Names = list[str]


@cache
def group_schemas() -> dict[str, dict[str, Any]]:
    """Group to schema name to dataclass.

    A group whose choices differ in their fields has one schema per choice, under the choice's name;
    the others have one, called `base`.
    """
    return {
        "task": {"base": TaskConfig},
        "model": {"base": ModelConfig},
        "dataset": {"base": DatasetConfig},
        "codec": {name: _with_common_options(codec_options(name)) for name in codec_names()},
        "topology": {"base": TopologyConfig},
        "parallel": dict(PARALLEL_SETTINGS),
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


def _with_common_options(options: type) -> type:
    """The schema of a codec: its own fields, then those that every codec has."""
    return dataclasses.make_dataclass(options.__name__, [], bases=(CommonOptions, options))


_plugins: dict[str, Any] = {}
"""The schemas of the plug-ins of this process: `codec/<module>:<class>`."""


def add_plugin(kind: str, name: str, schema: Any) -> None:
    """Make a plug-in known to Hydra as a choice of its group, at once: a file that it is composing may name
    it."""
    _plugins[f"{kind}/{name}"] = schema
    _node.cache_clear()


def plugin_choices() -> Mapping[str, Sequence[str]]:
    """The plug-ins of this process, by group."""
    places = [place.partition("/") for place in _plugins]
    return {kind: [name for of, _, name in places if of == kind] for kind, _, _ in places}


def _known() -> Mapping[str, Any]:
    return {**_schemas(), **_plugins}


@cache
def _schemas() -> Mapping[str, Any]:
    """`schema/<group>/<name>` to the dataclass; `schema/keys/<task>` to a mapping, the keys of the root."""
    from gradwire.harness.config.root_keys import own_defaults, usual_defaults
    from gradwire.harness.config.tasks import TASKS

    schemas = {
        f"schema/{group}/{name}": schema
        for group, schemas in group_schemas().items()
        for name, schema in schemas.items()
    }
    keys = {f"schema/keys/{task}": own_defaults(task) for task in TASKS}
    return {**schemas, **keys, "schema/keys/every": usual_defaults()}


@cache
def _node(place: str) -> Any:
    """What Hydra composes for one of the schemas, made when it is chosen: all of them take a fifth of a
    second."""
    schema = _known()[place]
    if isinstance(schema, dict):
        return OmegaConf.create(schema)
    node = OmegaConf.structured(schema)
    let_write(node)
    return node


def let_write(node: Any) -> None:
    """A frozen dataclass makes its node read-only; choices and the command line still have to set values."""
    OmegaConf.set_readonly(node, None)
    for name in node:
        child = node._get_node(name)
        if OmegaConf.is_dict(child):
            let_write(child)


class Schemas(ConfigSource):
    """The schemas, as Hydra asks for them.

    Hydra's own ConfigStore would do. But Hydra copies its sources whenever it composes or lists the choices
    of a group, and copying a store with every schema in it takes half the time of composing.
    """

    @staticmethod
    def scheme() -> str:
        return "gradwire-schemas"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://",
            config=copy.deepcopy(_node(_place(config_path))),
            header={"package": None},
        )

    def is_group(self, config_path: str) -> bool:
        return any(place.startswith(f"{config_path}/") for place in _known()) if config_path else True

    def is_config(self, config_path: str) -> bool:
        return _place(config_path) in _known()

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        """The groups and configurations directly in `config_path`."""
        start = f"{config_path}/" if config_path else ""
        below = (place.removeprefix(start) for place in _known() if place.startswith(start))
        names = {name.partition("/")[0]: "/" in name for name in below}
        kinds = {True: ObjectType.GROUP, False: ObjectType.CONFIG}
        return sorted(name for name, group in names.items() if results_filter in (None, kinds[group]))


def _place(config_path: str) -> str:
    return config_path.rstrip("/").removesuffix(".yaml")


class SchemasOnPath(SearchPathPlugin):
    """Adds the schemas to the places that Hydra searches."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("gradwire", f"{Schemas.scheme()}://schemas")


@cache
def register_schemas() -> None:
    """Make the schemas known to Hydra, once per process."""
    for each in (Schemas, SchemasOnPath):
        Plugins.instance().register(each)


def choices_with_field(group: str, field: str) -> Iterator[str]:
    """The choices of `group` whose own schema has `field`: `bits` of `codec` gives `dynamiq`."""
    for name, schema in group_schemas().get(group, {}).items():
        if name != "base" and field in (known.name for known in dataclasses.fields(schema)):
            yield name
