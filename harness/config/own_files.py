"""A user's own configuration files: `--config-dir DIR` adds the choices `DIR/<group>/<name>.yaml`.

Hydra gets them from the same source as the schemas, and composes them like any file. Before that, a file's
form is checked: it must be plain YAML, its keys must belong to its group (Hydra calls objects configured at
some places of its own node), and it must not import anything that the user has not allowed. Afterwards its
values are checked by the rules of the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.codecs.fields import is_plain_name
from gradwire.codecs.plugins import ENTRY_POINTS, announced
from gradwire.harness.config.choices import choices_in
from gradwire.harness.files.reading import UnusableFileError, printable, read_text
from gradwire.harness.files.structured import MOST_YAML, read_yaml
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError, closest, shortened

FLAG = "--config-dir"

REMEDY = f"correct the file, or leave {FLAG} out"

GLOBAL = ("experiment", "size", "sweeps")
"""Groups whose files set keys of the whole configuration; files of `task` may."""

SWEEP = ("hydra.sweeper.cases", "hydra.sweeper.common", "hydra.sweeper.needs")
"""Hydra's own keys that only files set: `tiny: [{codec: [bf16, thc], seed: 0}]`."""

_PACKAGE = re.compile(r"\s*#\s*@package[ \t]+(\S+)")
_ELSEWHERE = re.compile(r"@(?!_here_$|_global_\.\w+$)|\bhydra\b")
"""An entry of a defaults list that would move a choice's keys to another place than its group."""
_OVERRIDE = re.compile(r"override +/?(\w+)")


@dataclass(frozen=True)
class OwnFile:
    """A file's content: its `values`, including the defaults list, and whether they are global or belong to
    its group."""

    path: Path
    group: str
    values: Mapping[str, Any]
    everywhere: bool

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Each dotted key that the file sets with its value; those of `SWEEP` in one piece. Raises
        ConfigError for a name with a dot."""
        values = {name: value for name, value in self.values.items() if name != "defaults"}
        return _leaves(values, "" if self.everywhere else f"{self.group}.")


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if "." in name:  # one key to Hydra, another to the rules
            nested = f"{name.replace('.', ': {')}: {shortened(value)}{'}' * name.count('.')}"
            raise ConfigError(f"{shortened(key)}: a file has keys within keys; write {shortened(nested)}")
        if isinstance(value, Mapping) and key not in SWEEP:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


@dataclass(eq=False)
class OwnFolder:
    """The files of a folder, `names` by group. Each is read once, so that an edit does not change a running
    sweep."""

    path: Path
    names: Mapping[str, Sequence[str]]
    _files: dict[str, OwnFile] = field(default_factory=dict)
    _used: list[OwnFile] | None = None

    def has(self, place: str) -> bool:
        """True if there is a file `<group>/<name>`."""
        group, _, name = place.rpartition("/")
        return name in self.names.get(group, ())

    def read(self, place: str) -> OwnFile:
        """The file `<group>/<name>`, its form checked. Raises ConfigError."""
        if place not in self._files:
            self._files[place] = _read(self.path / f"{place}.yaml", place.partition("/")[0])
        file = self._files[place]
        if self._used is None:
            return file
        self._used.append(file)
        return replace(file, values={"defaults": file.values.get("defaults", [])})

    @contextmanager
    def without_values(self) -> Iterator[list[OwnFile]]:
        """Makes the folder return only defaults lists in this block: the configuration that the files build
        on. Yields the list of complete files."""
        self._used = []
        try:
            yield self._used
        finally:
            self._used = None


def _read(path: Path, group: str) -> OwnFile:
    try:
        head = _PACKAGE.match(read_text(path, remedy=REMEDY, most=MOST_YAML))
        values = read_yaml(path, remedy=REMEDY)
    except UnusableFileError as error:
        raise ConfigError(str(error)) from None
    package = "_group_" if head is None else head[1]
    file = OwnFile(path, group, values, everywhere=package == "_global_")
    if group in GLOBAL and not file.everywhere:
        raise ConfigError(
            f"{path}: files of {group} set keys of the whole configuration, such as train: {{steps: 5}}; "
            "begin it with the line # @package _global_"
        )
    if group not in (*GLOBAL, "task") and package != "_group_":
        raise ConfigError(
            f"{path}: # @package {shortened(package)}: a file of {group} sets keys of {group}; leave the "
            "line out, or make it a file of experiment"
        )
    defaults = values.get("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(f"{path}: defaults={shortened(defaults)}: choose a list; {REMEDY}")
    for entry in defaults:
        words = [*entry, *entry.values()] if isinstance(entry, Mapping) else [entry]
        if (
            not words
            or any(not isinstance(word, str) or _ELSEWHERE.search(word) for word in words)
            or (isinstance(entry, Mapping) and any(_overridden(word) == group for word in entry))
        ):
            other = "/<group>" if file.everywhere else "/<group>@_global_.<group>"
            raise ConfigError(
                f"{path}: defaults: {shortened(entry)} is not a choice; write <choice of {group}>, "
                f"override {other}: <choice> or _self_"
            )
    return file


def _overridden(word: str) -> str | None:
    """The group in `override /<group>`; Hydra silently ignores one of the file's own group."""
    found = _OVERRIDE.match(word)
    return None if found is None else found[1]


_in_use: list[OwnFolder] = []


def own_folder() -> OwnFolder | None:
    """The folder given on the command line, if any."""
    return _in_use[0] if _in_use else None


def own_choices(group: str) -> list[Path]:
    """The files that the folder in use adds to a group, sorted."""
    folder = own_folder()
    return [] if folder is None else [folder.path / group / f"{name}.yaml" for name in folder.names[group]]


def use_folder(given: str | None) -> None:
    """Add the choices of a folder to the project's; None removes them. Raises ConfigError."""
    _in_use.clear()
    if given is None:
        return
    path = Path(os.path.abspath(os.path.expanduser(given)))
    groups = choices_in(conf_directory())
    try:
        if not given.strip() or not given.isprintable():
            raise FileNotFoundError
        entries = sorted(os.listdir(path))
        names = {group: _names(path / group, known) for group, known in groups.items()}
    except OSError as error:
        reasons = {FileNotFoundError: "there is no such folder", NotADirectoryError: "is not a folder"}
        raise ConfigError(
            f"{FLAG}={shortened(given)}: {reasons.get(type(error), error.strerror)}; choose a folder with "
            "<group>/<name>.yaml, e.g. codec/mine.yaml"
        ) from None
    if "config.yaml" in entries:
        raise ConfigError(
            f"{path / 'config.yaml'}: the main configuration is gradwire's own; put your settings into "
            "<group>/<name>.yaml, such as experiment/mine.yaml, and choose them by <group>=<name>"
        )
    if not any(names.values()):
        near = next((near[0] for name in entries if (near := closest(name, groups))), None)
        instead = f" (did you mean {near}?)" if near is not None else ""
        raise ConfigError(
            f"{FLAG}={path}: adds no choice{instead}; put files at <group>/<name>.yaml in it, the groups "
            f"are {', '.join(groups)}"
        )
    _in_use.append(OwnFolder(path, names))


def _names(place: Path, known: Sequence[str]) -> list[str]:
    """The choices that a folder adds to the `known` ones of its group, sorted."""
    found = []
    for path in sorted(place.iterdir()) if place.is_dir() else []:
        if path.name.startswith(".") or path.suffix not in (".yaml", ".yml"):
            continue
        if path.suffix == ".yml" or not is_plain_name(path.stem):
            raise ConfigError(
                f"{printable(str(path))}: cannot be chosen; rename it to letters, digits, '.', '_', '+' and "
                "'-', and .yaml"
            )
        group = place.name
        if path.stem in known or (group in ENTRY_POINTS and path.stem in announced(group)):
            raise ConfigError(f"{path}: {group}={path.stem} exists already; give the file another name")
        found.append(path.stem)
    return found
