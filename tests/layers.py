"""The packages' imports of each other, read from the sources: also those inside functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Edge = tuple[str, str]
"""The importing package and the imported one, as folders from the root: `harness/comm/world`."""


def layers(tree: str) -> list[str]:
    """The packages of harness/ in the order in which the tree of docs/architecture.md lists them."""
    lines = tree[tree.index("\nharness/") + 1 :].splitlines()
    found, parent = list[str](), ""
    for line in lines[1:]:
        if not line.startswith(" "):
            break
        names = re.match(r"( +)((?:\w+/(?:, )?)+)", line)
        if names is None:  # a description that continues
            continue
        above = parent if len(names[1]) > 2 else "harness"
        packages = [f"{above}/{name}" for name in re.findall(r"(\w+)/", names[2])]
        if above == "harness":
            parent = packages[-1]
        found += packages
    return found


def imports(root: Path, folder: str) -> Iterator[tuple[Path, str]]:
    """Every file of `folder`, and each module of the project that it names in an import, as a path without
    its ending: `harness/comm/world/process`."""
    for path in sorted((root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{name.name}" for name in node.names]
            elif isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            else:
                continue
            for name in names:
                if name.startswith("gradwire."):
                    yield path.relative_to(root), name.removeprefix("gradwire.").replace(".", "/")


def edges(root: Path, packages: list[str]) -> dict[Edge, Path]:
    """The imports between `packages` of harness/, each with one file that has it."""
    found = dict[Edge, Path]()
    for path, module in imports(root, "harness"):
        edge = owner(str(path), packages), owner(module, packages)
        if edge[0] and edge[1] and edge[0] != edge[1]:
            found.setdefault(edge, path)
    return found


def owner(module: str, packages: list[str]) -> str:
    """The innermost of `packages` that a module lies in; empty where none has it."""
    return max((name for name in packages if f"{module}/".startswith(f"{name}/")), key=len, default="")


def upward(root: Path, packages: list[str]) -> list[str]:
    """The imports that point at a later one of `packages`, in words."""
    place = {name: number for number, name in enumerate(packages)}
    return [
        f"{path} imports {imported}, which is above {importing}"
        for (importing, imported), path in edges(root, packages).items()
        if place[imported] > place[importing]
    ]


def circle(root: Path, folder: str) -> list[str]:
    """One circle of imports among the packages and modules that lie directly in `folder`; empty without."""
    graph = dict[str, set[str]]()
    for path, module in imports(root, folder):
        importing = path.parts[1].removesuffix(".py")
        parts = module.split("/")
        if parts[0] == folder and len(parts) > 1 and parts[1] != importing:
            graph.setdefault(importing, set()).add(parts[1])
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
