"""The schemas of every group, and their registration with Hydra.

They are in `schema/<group>`, so that they are not listed as choices of the group itself. A choice
`conf/<group>/<choice>.yaml` names its schema in its defaults list.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from gradwire.codecs.options.common import CommonOptions
from gradwire.codecs.plugins import ENTRY_POINTS, is_reference
from gradwire.codecs.registry import codec_names, codec_options
from gradwire.harness.comm.settings import ClusterConfig, OverlapConfig, TopologyConfig
from gradwire.harness.config.own_files import own_folder
from gradwire.harness.config.plugins import plugin_schemas, register_plugin
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


@cache
def _schemas() -> Mapping[str, Any]:
    """`schema/<group>/<name>` to the dataclass; `schema/keys/<task>` to a mapping of root keys."""
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
    """The node that Hydra composes for a schema, made on first use because making all takes a fifth of a
    second."""
    schema = {**_schemas(), **plugin_schemas()}[place]
    if isinstance(schema, dict):
        return OmegaConf.create(schema)
    node = OmegaConf.structured(schema)
    let_write(node)
    return node


def let_write(node: Any) -> None:
    """Makes the node of a frozen dataclass writable, because choices and the command line must set its
    values."""
    OmegaConf.set_readonly(node, None)
    for name, value in cast(dict[str, Any], OmegaConf.to_container(node, resolve=False)).items():
        if isinstance(value, dict):
            let_write(node[name])


class Additions(ConfigSource):
    """A source of configurations in addition to the files of `conf/`: schemas, plug-ins and the user's own
    files.

    Hydra's own ConfigStore would suffice for schemas. But Hydra copies its sources whenever it composes or
    lists the choices of a group, and copying a store with all schemas takes half of the time of composing.
    """

    @staticmethod
    def scheme() -> str:
        return "gradwire"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        place, folder = _place(config_path), own_folder()
        everywhere = False
        if folder is not None and folder.has(place):
            file = folder.read(place)
            config, everywhere = OmegaConf.create(dict(file.values)), file.everywhere
        else:
            config = copy.deepcopy(_node(place))
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=config,
            header={"package": "_global_" if everywhere else None},
        )

    def is_group(self, config_path: str) -> bool:
        return not config_path or any(place.startswith(f"{config_path}/") for place in self._places())

    def is_config(self, config_path: str) -> bool:
        """True if there is such a choice; a plug-in that a file names becomes one if the user has allowed
        it.
        """
        place = _place(config_path)
        kind, _, name = place.partition("/")
        if kind in ENTRY_POINTS and is_reference(name):
            register_plugin(kind, name)
        return place in self._places()

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        """The groups and configurations directly in `config_path`."""
        start = f"{config_path}/" if config_path else ""
        below = (place.removeprefix(start) for place in self._places() if place.startswith(start))
        names = {name.partition("/")[0]: "/" in name for name in below}
        kinds = {True: ObjectType.GROUP, False: ObjectType.CONFIG}
        return sorted(name for name, group in names.items() if results_filter in (None, kinds[group]))

    def _places(self) -> set[str]:
        folder = own_folder()
        own = {} if folder is None else folder.names
        files = {f"{group}/{name}" for group, names in own.items() for name in names}
        return {*_schemas(), *plugin_schemas(), *files}


def _place(config_path: str) -> str:
    return config_path.rstrip("/").removesuffix(".yaml")


class AdditionsOnPath(SearchPathPlugin):
    """Adds `Additions` to Hydra's search path, after `conf/`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("gradwire", f"{Additions.scheme()}://additions")


@cache
def register_additions() -> None:
    """Registers the additions with Hydra, once per process."""
    for each in (Additions, AdditionsOnPath):
        Plugins.instance().register(each)


def choices_with_field(group: str, field: str) -> Iterator[str]:
    """The choices of `group` whose own schema has `field`: `bits` of `codec` gives `dynamiq`."""
    for name, schema in group_schemas().get(group, {}).items():
        if name != "base" and field in (known.name for known in dataclasses.fields(schema)):
            yield name
