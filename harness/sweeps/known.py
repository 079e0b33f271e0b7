"""The axes and values of sweeps that have not run, as declared in their files, for checking questions about
them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from omegaconf import OmegaConf

from gradwire.codecs.fields import default_of
from gradwire.harness.config.compose import choices_of_groups, compose, composed_hydra
from gradwire.harness.config.declared import SEED, Declared, declared_in, taking
from gradwire.harness.config.store import group_schemas
from gradwire.harness.report.claims.known_sweeps import KnownSweep, Planned

SWEEPS = "sweeps"


def known_sweeps() -> dict[str, KnownSweep]:
    """Every sweep by name, the user's own among them: axes at any size, and the choices that cells share."""
    declared: dict[str, Declared] = {}
    known: dict[str, KnownSweep] = {}
    for name in choices_of_groups()[SWEEPS]:
        hydra = composed_hydra([f"{SWEEPS}={name}"])
        declared[name] = declared_in(hydra)
        known[name] = known_sweep(declared[name], hydra.runtime.choices)
    for name, each in declared.items():
        for needed in each.needs.values():
            # The axes of needed cells distinguish the sweep's own cells, too.
            for key, values in known[needed].axes.items() if needed in known else ():
                known[name].add_axis(key, values)
    return known


def known_sweep(declared: Declared, choices: Mapping[str, Any]) -> KnownSweep:
    """The axes and values that one sweep declares; its cells share the `choices` of groups unless they set
    them."""
    known = KnownSweep()
    cases = [case for found in declared.cases.values() for case in found]
    for case in cases:
        for key, value in case.items():
            takes = isinstance(value, Mapping)
            known.add_axis(str(key), taking(key, value, declared.needs).words if takes else _listed(value))
    for key in list(known.axes):
        known.add_axis(key, [value for case in cases if key not in case for value in _defaults(key, case)])
    commons = [common for common in declared.common.values() for common in common.items()]
    for key, value in [*choices.items(), *commons]:
        known.shared.setdefault(str(key), []).append(value)
    known.sizes = {size: _planned(declared, size, choices) for size in declared.cases}
    return known


def _planned(declared: Declared, size: str, choices: Mapping[str, Any]) -> Planned:
    cases = declared.cases_of(size)
    common = {**choices, **declared.common_of(size)}
    models = [model for case in cases for model in _listed(case.get("model", common.get("model")))]
    cells = []
    for case in cases:
        own = {key: value for key, value in case.items() if key != SEED and not isinstance(value, Mapping)}
        cells += [dict(zip(own, each, strict=True)) for each in product(*map(_listed, own.values()))]
    task = str(common.get("task", "train"))
    trained = tuple(dict.fromkeys(str(model) for model in models if model)) if task == "train" else ()
    return Planned(task, trained, tuple(cells))


def _defaults(key: str, case: Mapping[str, Any]) -> Iterator[Any]:
    """The default values of a field in the choices that a case makes, e.g. for `codec.group`."""
    group, _, name = key.partition(".")
    for choice in _listed(case.get(group, [])):
        if group == "model" and choice in choices_of_groups()[group]:
            yield OmegaConf.select(compose([f"model={choice}"], named_by_user=False), key)
            continue
        schema = group_schemas().get(group, {}).get(choice)
        for field in dataclasses.fields(schema) if schema is not None else ():
            if field.name == name:
                yield default_of(field)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
