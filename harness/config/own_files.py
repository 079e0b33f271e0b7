"""A user's own configuration files: `--config-dir DIR` adds the choices `DIR/<group>/<name>.yaml`.

Such a file may come from anyone. It is read within the bounds of `harness.reading`, has the form of
`harness.config.own_form`, is built on choices that exist, and its keys and values pass the rules of the
command line before they are composed. Hydra reads these files through `OwnFiles`, and so sees nothing else of
the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from gradwire.codecs.fields import is_plain_name
from gradwire.codecs.plugins import ENTRY_POINTS, announced, is_reference
from gradwire.codecs.registry import RENAMED
from gradwire.harness.config.own_form import FLAG, REMEDY, OwnFile, Place, package_of, parts, read_own_file
from gradwire.harness.config.plugins import register_plugin
from gradwire.harness.config.store import group_schemas
from gradwire.harness.files.reading import printable
from gradwire.harness.runtime.errors import ConfigError, closest, did_you_mean, shortened

MOST_FILES = 1000
"""Entries of one group's folder."""

MOST_DEFAULTS = 200
"""Choices that a file is built on, those that they are built on included."""

Names = list[str]


@dataclass(eq=False)
class OwnFolder:
    """The files of a folder, by group and name. Raises ConfigError for a folder that cannot be used."""

    path: Path
    conf: Path
    """The project's own folder of groups."""
    groups: Mapping[str, Sequence[str]]
    """The project's own choices of each group, which no file replaces."""
    bare: bool = False
    """While set, Hydra is given the defaults lists alone: what the files build on, without their values."""
    used: list[OwnFile] = field(default_factory=list)
    """What Hydra has asked for while `bare`."""

    def __post_init__(self) -> None:
        self._files: dict[Place, OwnFile] = {}
        self.names = {group: self._names(group) for group in self.groups}
        if not any(self.names.values()):
            raise ConfigError(f"{FLAG}={self.path}: {self._nothing()}")

    def read(self, group: str, name: str) -> OwnFile:
        """A file of the folder, read once, all that it is built on being there. Raises ConfigError."""
        if (group, name) not in self._files:
            self._count((group, name))
        return self._file((group, name))

    def path_of(self, group: str, name: str) -> Path:
        return self.path / group / f"{name}.yaml"

    def _names(self, group: str) -> list[str]:
        """The choices that the folder adds to a group, sorted."""
        place, found = self.path / group, []
        entries = _entries(place)
        if len(entries) > MOST_FILES:
            raise ConfigError(f"{place}: holds more than {MOST_FILES} files; leave those of other uses out")
        for name in sorted(entries):
            stem, kind = os.path.splitext(name)
            if name.startswith(".") or kind not in (".yaml", ".yml"):
                continue
            if kind == ".yml" or not is_plain_name(stem):
                raise ConfigError(
                    f"{printable(str(place / name))}: cannot be chosen; rename it to letters, digits, '.', "
                    "'_', '+' and '-', and .yaml"
                )
            if stem in self.groups[group] or (group in ENTRY_POINTS and stem in announced(group)):
                raise ConfigError(
                    f"{place / name}: {group}={stem} exists already; give the file another name"
                )
            found.append(stem)
        return found

    def _nothing(self) -> str:
        """What to do about a folder without a single file of a group."""
        meant = next((near[0] for name in _entries(self.path) if (near := closest(name, self.groups))), None)
        instead = f" (did you mean {meant}?)" if meant is not None else ""
        return (
            f"adds no choice{instead}; put files at <group>/<name>.yaml in it, the groups are "
            f"{', '.join(self.groups)}"
        )

    def _file(self, place: Place) -> OwnFile:
        if place not in self._files:
            self._files[place] = read_own_file(self.path_of(*place), place[0])
        return self._files[place]

    def _count(self, place: Place, above: tuple[Place, ...] = ()) -> int:
        """How many choices a file of the folder is built on, itself included; all of them must exist."""
        if place in above:
            raise ConfigError(f"{self.path_of(*place)}: its defaults list leads back to itself; {REMEDY}")
        count = 1
        for group, name in parts(self._file(place)):
            own = name in self.names.get(group, ())
            count += self._count((group, name), (*above, place)) if own else 1
            self._check_part(place, group, name)
            if count > MOST_DEFAULTS:
                raise ConfigError(
                    f"{self.path_of(*place)}: is built on more than {MOST_DEFAULTS} choices; {REMEDY}"
                )
        return count

    def _check_part(self, place: Place, group: str, name: str) -> None:
        """Refuse a choice that there is not; make a plug-in that the user has allowed known to Hydra."""
        said = f"{self.path_of(*place)}: defaults: {shortened(group)}={shortened(name)}"
        if group in ENTRY_POINTS and is_reference(name):
            register_plugin(group, name)
            return
        schemas = list(group_schemas().get(group.removeprefix("schema/"), ()))
        own = [*self.groups.get(group, ()), *self.names.get(group, ())]
        choices = schemas if group.startswith("schema/") else own
        if not choices:
            raise ConfigError(
                f"{said}: there is no such group; use override /<group>: <choice>, of "
                f"{', '.join(self.groups)}"
            )
        if name not in choices:
            new = RENAMED.get(name) if group.removeprefix("schema/") == "codec" else None
            near = f"; it has a new name, {new}" if new else did_you_mean(name, choices)
            near = near or f"; choose one of {', '.join(choices)}"
            raise ConfigError(f"{said} is unknown{near}; {REMEDY}")
        if place[0] == group == "task" and self._file(place).everywhere and not self._everywhere(name):
            raise ConfigError(f"{said} sets keys of task alone; leave the line # @package _global_ out")

    def _everywhere(self, task: str) -> bool:
        """Whether the file of a task sets keys of the whole configuration."""
        if task in self.names["task"]:
            return self._file(("task", task)).everywhere
        return package_of((self.conf / "task" / f"{task}.yaml").read_text("utf-8")) == "_global_"


def _entries(place: Path) -> list[str]:
    """Names of what a folder holds, `MOST_FILES` and one at most; none where there is no folder."""
    try:
        with os.scandir(place) as entries:
            return [entry.name for entry in islice(entries, MOST_FILES + 1)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}; choose a folder that can be read") from None


class OwnFiles(ConfigSource):
    """The files of the folder in use, as Hydra asks for them."""

    @staticmethod
    def scheme() -> str:
        return "gradwire-files"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        group, name = _place(config_path)
        folder = own_folder()
        assert folder is not None
        file = folder.read(group, name)
        values = {} if folder.bare else dict(file.values)
        folder.used += [file] if folder.bare else []
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{self.path}",
            config=OmegaConf.create({"defaults": list(file.defaults), **values}),
            header={"package": "_global_" if file.everywhere else None},
        )

    def is_group(self, config_path: str) -> bool:
        folder = own_folder()
        return folder is not None and bool(not config_path or folder.names.get(config_path))

    def is_config(self, config_path: str) -> bool:
        group, name = _place(config_path)
        folder = own_folder()
        return folder is not None and name in folder.names.get(group, ())

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        folder = own_folder()
        assert folder is not None
        if config_path:
            return [] if results_filter == ObjectType.GROUP else folder.names.get(config_path, [])
        return [] if results_filter == ObjectType.CONFIG else [*folder.names]


def _place(config_path: str) -> Place:
    group, _, name = config_path.rpartition("/")
    return group, name.removesuffix(".yaml")


class OwnFolderOnPath(SearchPathPlugin):
    """Adds the folder in use to the places that Hydra searches, behind the project's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folder = own_folder()
        if folder is not None:
            search_path.append("command-line", f"{OwnFiles.scheme()}://{folder.path}")


_in_use: list[OwnFolder] = []


def own_folder() -> OwnFolder | None:
    """The folder that the command line has named, if it has."""
    return _in_use[0] if _in_use else None


def _kind(path: Path) -> str | None:
    """Why a path is no folder, None if it is one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "there is no such folder"
    except OSError as error:
        return str(error.strerror)
    return None if stat.S_ISDIR(mode) else "is a file"


def own_choices(group: str) -> list[Path]:
    """The files that the folder in use adds to a group, sorted."""
    folder = own_folder()
    names = folder.names.get(group, []) if folder is not None else []
    return [folder.path_of(group, name) for name in names] if folder is not None else []


def use_folder(given: str | None, conf: Path) -> None:
    """Add the choices of a folder to those of `conf`, or none any more. Raises ConfigError."""
    _in_use.clear()
    if given is None:
        return
    path = Path(os.path.abspath(os.path.expanduser(given)))
    kind = _kind(path) if given.strip() and given.isprintable() else "there is no such folder"
    if kind is not None:
        raise ConfigError(
            f"{FLAG}={shortened(given)}: {kind}; choose a folder with <group>/<name>.yaml, e.g. "
            "codec/mine.yaml"
        )
    if "config.yaml" in _entries(path):
        raise ConfigError(
            f"{path / 'config.yaml'}: the main configuration is gradwire's own; put your settings into "
            "<group>/<name>.yaml, such as experiment/mine.yaml, and choose them by <group>=<name>"
        )
    places = sorted(place for place in conf.iterdir() if place.is_dir() and place.name != "hydra")
    own = {place.name: sorted(file.stem for file in place.glob("*.yaml")) for place in places}
    _in_use.append(OwnFolder(path, conf, own))


@cache
def register_own_files() -> None:
    """Make both known to Hydra, once per process."""
    for each in (OwnFiles, OwnFolderOnPath):
        Plugins.instance().register(each)
