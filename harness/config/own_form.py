"""The form of a user's own configuration file: its `# @package` line, its defaults list and its values.

Hydra can put a choice's keys at any place, `/codec@hydra.sweeper: thc`, and calls what stands at some of its
own places. So the defaults list of such a file has only the forms that `parts` knows: each leaves every key
at its group's place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import MOST_YAML, read_yaml
from gradwire.harness.runtime.errors import ConfigError, shortened

FLAG = "--config-dir"

REMEDY = f"correct the file, or leave {FLAG} out"

GLOBAL = ("experiment", "size", "sweeps")
"""Groups whose files set keys of the whole configuration; files of `task` may."""

_PACKAGE = re.compile(r"\s*#\s*@package[ \t]+(\S+)")
_CHOICE = re.compile(r"(?:/(?P<group>(?:schema/)?\w+)/)?(?P<name>[\w.:+-]+)(?P<here>@_here_)?")
_OVERRIDE = re.compile(r"override +/(?P<group>\w+)(?P<place>@_global_\.(?P=group))?")

Place = tuple[str, str]
"""A choice: its group and its name."""


@dataclass(frozen=True)
class OwnFile:
    """What a file holds, its form checked."""

    path: Path
    group: str
    defaults: Sequence[Any]
    values: Mapping[str, Any]
    everywhere: bool
    """Whether its keys are those of the whole configuration and not of its group."""


def read_own_file(path: Path, group: str) -> OwnFile:
    """The file of a group. Raises ConfigError for one that cannot be read or sets keys of another place."""
    try:
        package = package_of(read_text(path, remedy=REMEDY, most=MOST_YAML))
        values = read_yaml(path, remedy=REMEDY)
    except UnusableFileError as error:
        raise ConfigError(str(error)) from None
    everywhere = package == "_global_"
    if group in GLOBAL and not everywhere:
        raise ConfigError(
            f"{path}: files of {group} set keys of the whole configuration, such as train: {{steps: 5}}; "
            "begin it with the line # @package _global_"
        )
    if group not in (*GLOBAL, "task") and package != "_group_":
        raise ConfigError(
            f"{path}: # @package {shortened(package)}: a file of {group} sets keys of {group}; leave the "
            "line out, or make it a file of experiment"
        )
    defaults = values.pop("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(f"{path}: defaults={shortened(defaults)}: choose a list; {REMEDY}")
    return OwnFile(path, group, defaults, values, everywhere)


def package_of(text: str) -> str:
    """The place of a file's keys, by its line `# @package <place>`; `_group_` where it has none."""
    head = _PACKAGE.match(text)
    return head[1] if head is not None else "_group_"


def parts(file: OwnFile) -> Iterator[Place]:
    """The choices that a file's defaults list names. Raises ConfigError for an entry of another form."""
    bases = 0
    for entry in file.defaults:
        if entry == "_self_":
            continue
        bases += not isinstance(entry, Mapping)
        if bases > 1 and not file.everywhere:
            raise ConfigError(
                f"{file.path}: defaults: {shortened(entry)} comes second; build on one choice of {file.group}"
            )
        place = _overridden(file, entry) if isinstance(entry, Mapping) else _built_on(file, entry)
        if place is None:
            other = "/<group>" if file.everywhere else "/<group>@_global_.<group>"
            raise ConfigError(
                f"{file.path}: defaults: {shortened(entry)} is no choice; write <choice of {file.group}>, "
                f"override {other}: <choice> or _self_"
            )
        yield place


def _built_on(file: OwnFile, entry: Any) -> Place | None:
    """`dynamiq`, `/codec/dynamiq@_here_` or `/schema/codec/dynamiq@_here_` in a file of `codec`."""
    found = _CHOICE.fullmatch(entry) if isinstance(entry, str) else None
    if found is None:
        return None
    group, here = found["group"] or file.group, found["here"] is not None
    known = [file.group] if file.everywhere else [file.group, f"schema/{file.group}"]
    in_place = here or file.everywhere if found["group"] else not here
    return (group, found["name"]) if group in known and in_place else None


def _overridden(file: OwnFile, entry: Mapping[str, Any]) -> Place | None:
    """`override /codec: thc`: another choice of another group, in place of the one made before."""
    if len(entry) != 1:
        return None
    ((key, value),) = entry.items()
    found = _OVERRIDE.fullmatch(key)
    name = _CHOICE.fullmatch(value) if isinstance(value, str) else None
    if found is None or name is None or name["group"] or name["here"] or found["group"] == file.group:
        return None
    return (found["group"], value) if file.everywhere or found["place"] else None
