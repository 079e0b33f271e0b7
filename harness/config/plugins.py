"""Plug-ins on the command line: `codec=my_module:Class` becomes a choice of its group, with its own fields.

Plug-ins named on the command line may be imported, here and by the workers; those named only in a file may
not, see `gradwire.codecs.plugins`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gradwire.codecs.options.common import CommonOptions
from gradwire.codecs.plugins import ENTRY_POINTS, allow, announced, is_reference
from gradwire.codecs.registry import codec_class, codec_names
from gradwire.harness.comm.settings import TopologyConfig
from gradwire.harness.comm.topology.registry import TOPOLOGIES, topology
from gradwire.harness.config.overrides import swept_elements
from gradwire.harness.parallel.settings import PARALLEL_SETTINGS, OutsideParallelConfig
from gradwire.harness.runtime.errors import refused_as_config_error


def allow_plugins(overrides: Sequence[Override]) -> None:
    """Permits the plug-ins that the user has named on the command line, one by one or as the values of a
    sweep."""
    for _, name in _chosen(overrides):
        allow(name)


def register_plugins(overrides: Sequence[Override]) -> None:
    """Import the plug-ins that the overrides choose, and register them with Hydra.

    Raises ConfigError in one line for one that the user has not named, that cannot be imported, or that is of
    the wrong kind.
    """
    for kind, name in _chosen(overrides):
        register_plugin(kind, name)


_registered: dict[str, Any] = {}


def register_plugin(kind: str, name: str) -> None:
    """Import a plug-in that the user has named and register it with Hydra. Raises ConfigError in one line."""
    _registered[f"{kind}/{name}"] = refused_as_config_error(_schema_of, kind, name)


def plugin_schemas() -> Mapping[str, Any]:
    """The schemas of the plug-ins of this process: `codec/<module>:<class>`."""
    return _registered


def plugin_choices() -> Mapping[str, Sequence[str]]:
    """The plug-ins of this process, by group."""
    places = [place.partition("/") for place in _registered]
    return {kind: [name for of, _, name in places if of == kind] for kind, _, _ in places}


def _chosen(overrides: Sequence[Override]) -> Iterator[tuple[str, str]]:
    """(kind, name) of every plug-in among the choices of groups."""
    for override in overrides:
        kind = override.key_or_group
        if kind not in ENTRY_POINTS or override.is_delete():
            continue
        swept = override.is_discrete_sweep()
        for name in swept_elements(override, _own(kind)) if swept else [override.value()]:
            if is_reference(name) or (
                isinstance(name, str) and name not in _own(kind) and name in announced(kind)
            ):
                yield kind, str(name)


def _own(kind: str) -> Sequence[str]:
    """The names of this package's own choices, which no other package may replace."""
    return {
        "codec": codec_names(),
        "topology": list(TOPOLOGIES),
        "parallel": list(PARALLEL_SETTINGS),
    }[kind]


@cache
def _schema_of(kind: str, name: str) -> Any:
    """The schema that Hydra composes for a plug-in. Raises ValueError."""
    if kind == "topology":
        topology(name)
        return TopologyConfig(name=name)
    if kind == "parallel":
        from gradwire.harness.parallel.registry import parallel_kind  # which loads accelerate

        parallel_kind(name)
        return OutsideParallelConfig(name=name)
    return _codec_schema(name)


def _codec_schema(name: str) -> type:
    """A dataclass with the fields of a codec's and the common options; Hydra types `codec.<field>` by it."""
    found = codec_class(name)
    hints = {**typing.get_type_hints(CommonOptions), **typing.get_type_hints(found)}
    fields = [
        (field.name, hints[field.name], _default_of(field))
        for field in (*dataclasses.fields(CommonOptions), *dataclasses.fields(cast(Any, found)))
        if field.init and field.name != "name"
    ]
    schema = dataclasses.make_dataclass(found.__name__, [("name", str, name), *fields])
    try:
        OmegaConf.structured(schema)
    except OmegaConfBaseException as error:
        words = " ".join(str(error).split())[:150]
        raise ValueError(
            f"codec={name}: a field has a type that a configuration cannot have, use int, float, bool, str, "
            f"list or dict: {words}"
        ) from None
    return schema


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory, metadata=field.metadata)
    return dataclasses.field(default=field.default, metadata=field.metadata)
