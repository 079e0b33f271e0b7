"""Codecs, topologies and parallelisms from other packages: `my_module:name`, or the name of an entry point.

Importing a module executes it, so only modules that the user has named are imported: on the command line, as
an argument of the library, or in the environment variable GRADWIRE_PLUGINS. A name that was read from a file,
such as a run directory's configuration, is not enough. Worker processes inherit the variable, and with it the
permission.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from gradwire.codecs.wording import closest, shortened

Part = TypeVar("Part")
"""An element of a registry: a codec class, a topology, a kind of parallelism."""

ALLOWED = "GRADWIRE_PLUGINS"
"""The environment variable with everything that may be imported, separated by spaces."""

ENTRY_POINTS = {
    "codec": "gradwire.codecs",
    "topology": "gradwire.topologies",
    "parallel": "gradwire.parallelisms",
}
"""Kind of a part to the group of entry points in which packages announce theirs."""

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(name: object) -> bool:
    """True if `name` has the form `module:name`."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


@lru_cache(maxsize=4)
def announced(kind: str) -> dict[str, metadata.EntryPoint]:
    """The plug-ins of a kind that installed packages declare as entry points, by name. Imports none of them.

    If two packages declare the same name, the first on Python's path wins.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS[kind]):
        found.setdefault(point.name, point)
    return found


def is_plugin(kind: str, name: object) -> bool:
    """True if `name` is a plug-in: a reference, or the name of a declared entry point."""
    return is_reference(name) or (isinstance(name, str) and name in announced(kind))


def plugins_of(names: Mapping[str, object]) -> dict[str, str]:
    """The plug-ins among a configuration's choices, by kind; this package's own parts are left out."""
    return {
        kind: str(name)
        for kind, name in names.items()
        if is_reference(name) or (name in allowed() and is_plugin(kind, name))
    }


def allow(name: str) -> None:
    """Permit this process and those it starts to import a plug-in that the user has named."""
    if name not in allowed():
        os.environ[ALLOWED] = " ".join([*allowed(), name])


def allowed() -> list[str]:
    """The plug-ins that the user has named."""
    return os.environ.get(ALLOWED, "").split()


def find(
    kind: str, name: str, own: Mapping[str, Part], form: str, checked: Callable[[object, str], Part]
) -> Part:
    """The part that `<kind>=<name>` chooses: one of the project's `own`, or a plug-in.

    `form` describes a plug-in's name in messages; `checked` returns a plug-in's object if it is usable.
    Raises ValueError in one line.
    """
    if isinstance(name, str) and name in own:
        return own[name]
    if is_plugin(kind, name):
        return checked(load(kind, name), name)
    near = closest(name, own, count=1) if isinstance(name, str) else []
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"{kind}={shortened(name)} is unknown; choose one of {', '.join(sorted(own))}, or {form}{meant}"
    )


def load(kind: str, name: str) -> object:
    """The object called `name`, imported if it has not been.

    Raises ValueError in one line if the user has not named it, if the module or name does not exist, or if
    its import fails.
    """
    if name not in allowed():
        raise ValueError(
            f"{kind}={name} is a plug-in, and no file may choose what is imported: name it on the "
            f"command line, {kind}={name}, or in the environment, {ALLOWED}={name}; with attach() pass "
            f"the object itself"
        )
    return _imported(kind, name)


@lru_cache(maxsize=64)
def _imported(kind: str, name: str) -> object:
    module_name, path = _target(kind, name)
    found: object = _module(module_name, f"{kind}={name}")
    for part in path.split("."):
        if not hasattr(found, part):
            public = [known for known in vars(found) if not known.startswith("_")]
            raise ValueError(
                f"{kind}={name}: {module_name} has no {path}; it has {', '.join(public[:12]) or 'nothing'}"
            )
        found = getattr(found, part)
    return found


def _target(kind: str, name: str) -> tuple[str, str]:
    """(module, path within it) of a reference or an announced name."""
    if not is_reference(name):
        point = announced(kind).get(name)
        if point is None or not is_reference(point.value):
            raise ValueError(
                f"{kind}={name}: no installed package announces it in the group {ENTRY_POINTS[kind]}"
            )
        name = point.value
    module_name, _, path = name.partition(":")
    return module_name, path


def _module(name: str, given: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path and not (Path(here) / "codecs" / "registry.py").is_file():
        sys.path.append(here)  # last: what lies here hides nothing; never a checkout's root, see run.py
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"{given}: there is no module {error.name} in {here} or among the packages of "
                f"{sys.executable}; set PYTHONPATH=<the folder that holds {error.name}>, or install it: "
                "python -m pip install <its package>"
            ) from None
        raise ValueError(f"{given}: importing {name} failed: {_words(error)}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{given}: importing {name} failed: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:150]


def source_digest(kind: str, name: str) -> str:
    """12 hexadecimal digits that identify a plug-in's source: its module's file, or all files of its package.

    Raises ValueError as `load` does.
    """
    load(kind, name)
    module_name, _ = _target(kind, name)
    top = sys.modules[module_name.partition(".")[0]]
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    if not files and getattr(top, "__file__", None):
        files = [Path(str(top.__file__))]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def version(kind: str, name: str) -> str:
    """A plug-in's version: the version of its package, if it came with one, and the digest of its source."""
    module_name, _ = _target(kind, name)
    packages = metadata.packages_distributions().get(module_name.partition(".")[0], [])
    versions = [f"{package} {metadata.version(package)}" for package in packages[:1]]
    return ", ".join([*versions, f"source {source_digest(kind, name)}"])
